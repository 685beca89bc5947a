"""Run torchft's own tests of its Gloo group over a group of aiodist in its place."""

import sys
import unittest
from typing import Any

from torchft import process_group_test
from torchft.process_group import ProcessGroupWrapper

from aiodist.torch_backend import connect

TESTS = ("test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives")
TESTS += ("test_process_group_wrapper", "test_error_swallowing_process_group_wrapper")
TESTS += ("test_managed_process_group",)

WORDS = "rank 2 .* has left|these did not arrive at the store within 0.01 s: 1;"
"""aiodist's errors where Gloo's are "Connection closed by peer" and "timeout after 10ms"."""


class OwnWords(unittest.TestCase):
    """Lets torchft's tests take aiodist's words in errors beside those of Gloo."""

    def assertRaisesRegex(self, kind: Any, words: str, *more: Any, **named: Any) -> Any:  # type: ignore[override]  # noqa: N802
        return super().assertRaisesRegex(kind, f"{words}|{WORDS}", *more, **named)  # noqa: PT027


class Alone(OwnWords, process_group_test.ProcessGroupTest):  # type: ignore[misc]
    """Tests of one process."""


class Several(OwnWords, process_group_test.NormalGlooMultiPgTest):  # type: ignore[misc]
    """Tests of several ranks, each a thread."""


class ProcessGroupAiodist(ProcessGroupWrapper):
    """What docs/torch-backend.md shows."""

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        return connect(store, rank, world_size, self._timeout)

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return "torchft-aiodist"


def main() -> None:
    process_group_test.ProcessGroupGloo = ProcessGroupAiodist
    suite = unittest.TestSuite(map(Alone, TESTS))
    suite.addTests(map(Several, unittest.TestLoader().getTestCaseNames(Several)))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())


if __name__ == "__main__":
    main()
