"""Run torchft's own tests of its Gloo group over a group of aiodist in its place."""

import sys
import unittest
from typing import Any

from torchft import process_group_test
from torchft.process_group import ProcessGroupWrapper

from aiodist.torch_backend import connect

TESTS = ("test_gloo_apis_0_cpu", "test_functional_collectives", "test_process_group_wrapper")
TESTS += ("test_error_swallowing_process_group_wrapper", "test_managed_process_group")


class ProcessGroupAiodist(ProcessGroupWrapper):
    """What docs/torch-backend.md shows."""

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        return connect(store, rank, world_size, self._timeout)

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return "torchft-aiodist"


def main() -> None:
    process_group_test.ProcessGroupGloo = ProcessGroupAiodist
    several = process_group_test.NormalGlooMultiPgTest
    suite = unittest.TestSuite(map(process_group_test.ProcessGroupTest, TESTS))
    suite.addTests(
        several(name)
        for name in unittest.TestLoader().getTestCaseNames(several)
        if "resiliency" not in name  # those look for Gloo's words in the errors
    )
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())


if __name__ == "__main__":
    main()
