"""Run PyTorch's own tests of torch.distributed, out of the installed wheel, over a backend.

    python tests/torch_backend/torch_suite.py --backend aiodist --ranks 2 [--all] [--only all_reduce]

The tests are ``torch.testing._internal.distributed.distributed_test``'s, the class
``DistributedTest._DistTestBase``. When the module is imported, its decorators select tests by the
name in ``BACKEND``. They see a name that passes for "gloo" and, for the tests of ``all_to_all`` on CPU,
for "mpi". The tests themselves run with the backend asked for, each in ranks forked for it.
torch_suite.toml lists the tests that cannot run here, and why; ``--all`` tries them as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
import tomllib
import types
import unittest
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

LEFT_OUT = Path(__file__).with_suffix(".toml")


class OpenGates(str):
    """Equal to "gloo", and not unequal to "mpi": the gates ask ``BACKEND != "mpi"``."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return other not in ("gloo", "mpi")

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def load(backend: str, ranks: int) -> types.ModuleType:
    """PyTorch's module of tests, with its gates open, for ``backend``."""
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(ranks),
        TEMP_DIR=tempfile.mkdtemp(prefix="torch-suite-"),
        CUDA_VISIBLE_DEVICES="",
    )
    shown = {**os.environ, "BACKEND": OpenGates("gloo")}
    with mock.patch("os.environ", shown), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_distributed
        from torch.testing._internal.distributed import distributed_test as module
    module.BACKEND = AlsoGloo(backend)
    for polling in (common_distributed, module):
        polling.time = types.SimpleNamespace(time=time.time, sleep=_sleep)
    if ranks > 2:
        # Tests of groups ask for eight ranks, but of MPI's three do.
        os.environ["BACKEND"] = "mpi"
    # Once, and not in each forked rank.
    import torch._dynamo  # noqa: F401  # which every optimizer imports

    if backend == "aiodist":
        import aiodist.torch_backend  # noqa: F401
    gc.freeze()  # so that no rank looks at what it has from here, and copies the memory of it
    return module


def _sleep(seconds: float) -> None:
    """Sleep, but look ten times as often where PyTorch's tests look every 0.1 s whether ranks are there."""
    time.sleep(0.01 if seconds == 0.1 else seconds)


def case(module: types.ModuleType) -> type[unittest.TestCase]:
    """PyTorch's tests as a class that forks the ranks of each."""

    class Forked(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return Forked


class AlsoGloo(str):
    """The name of a backend, equal to "gloo" too: tests ask it in order to skip what MPI lacks."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Outcomes(unittest.TestResult):
    """What became of each test: passed, failed or skipped, with the reason and the seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str, float]] = {}
        self._began = 0.0

    def startTest(self, test: Any) -> None:  # noqa: N802
        super().startTest(test)
        self._began = time.monotonic()

    def _put(self, test: Any, what: str, why: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 2)
        self.found[name_of(test)] = (what, why, seconds)
        if what != "skipped":
            print(f"{what:7} {seconds:6.2f} s  {name_of(test)}", flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._put(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._put(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._put(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure  # noqa: N815


def name_of(test: Any) -> str:
    name: str = test.id().rpartition(".")[2]
    return name


def left_out(ranks: int) -> frozenset[str]:
    """Names of tests that cannot run over ``ranks`` ranks on a machine without GPUs."""
    listed = tomllib.loads(LEFT_OUT.read_text())
    chosen = listed["left_out"] + [
        entry for entry in listed["from_ranks"] if entry["ranks"] > ranks
    ]
    return frozenset(name for entry in chosen for name in entry["tests"])


def run(
    backend: str, ranks: int, only: list[str], everything: bool
) -> dict[str, tuple[str, str, float]]:
    """(outcome, reason, seconds) of each test whose name contains one of ``only``, or of all.

    ``everything``: those that are listed as left out, too.
    """
    without = frozenset() if everything else left_out(ranks)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case(load(backend, ranks)))
    chosen = [
        test
        for test in tests
        if name_of(test) not in without
        and (not only or any(part in name_of(test) for part in only))
    ]
    outcomes = Outcomes()
    unittest.TestSuite(chosen).run(outcomes)
    return outcomes.found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="aiodist")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also those listed as left out")
    parser.add_argument("--only", action="append", default=[], metavar="PART")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes here")
    options = parser.parse_args()
    found = run(options.backend, options.ranks, options.only, options.all)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    kinds = [what for what, _, _ in found.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    seconds = sum(seconds for _, _, seconds in found.values())
    print(f"{options.backend}, {options.ranks} ranks: {counts} in {seconds:.0f} s")
    sys.exit("failed" in kinds)


if __name__ == "__main__":
    main()
