"""MPI jobs: an environment for each library, and a job for each block of cases."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, Samples, decode
from benchmarks.arrival.cases import PatternCase
from benchmarks.mpi_environment import OPTIONS, MpiEnvironment, mpi_environment
from benchmarks.mpi_leftovers import swept
from benchmarks.peers.mpi import OVER
from benchmarks.processes import ROOT, RankFailedError

LIMIT = 600.0
"""Seconds for a block."""


@dataclass(frozen=True)
class MpiJobs:
    """One MPI library in its environment; see `benchmarks.run.Blocks`."""

    library: MpiEnvironment

    @property
    def name(self) -> str:
        return self.library.name

    @property
    def peers(self) -> tuple[str, ...]:
        return (self.name, self.name + OVER)

    @property
    def version(self) -> str:
        return self.library.version

    def measure(
        self, ranks: int, cases: Sequence[Case], effort: Repetitions, pinned: bool
    ) -> list[list[Samples]]:
        """Start a job that measures ``cases``. Raises RankFailedError."""
        order = {
            "cases": [dataclasses.asdict(case) for case in cases],
            "effort": dataclasses.asdict(effort),
            "pinned": pinned,
        }
        return self._job(ranks, order, f"{self.name}, {ranks} ranks, {cases[0].operation}")

    def measure_pattern(self, case: PatternCase, effort: Repetitions) -> list[Samples]:
        """Start a job that measures ``case``, by direct calls alone. Raises RankFailedError."""
        order = {
            "pattern": dataclasses.asdict(case),
            "effort": dataclasses.asdict(effort),
        }
        (samples,) = self._job(case.case.ranks, order, f"{self.name}, {case}")
        return samples

    def _job(self, ranks: int, order: dict[str, Any], what: str) -> list[list[Samples]]:
        with tempfile.TemporaryDirectory() as folder:
            orders, samples = Path(folder, "orders.json"), Path(folder, "samples.json")
            orders.write_text(json.dumps(order))
            program = ["-m", "benchmarks.mpi_rank", self.name, orders, samples]
            try:
                with swept():
                    subprocess.run(
                        self.library.command(ranks, program),
                        cwd=ROOT,
                        env=self.library.variables(),
                        check=True,
                        capture_output=True,
                        text=True,
                        timeout=LIMIT,
                    )
            except subprocess.CalledProcessError as error:
                raise RankFailedError(f"{what}: {error.stderr or error.stdout}") from error
            except subprocess.TimeoutExpired as error:
                raise RankFailedError(f"{what}: no answer after {LIMIT:.0f} s") from error
            return [[decode(rank) for rank in case] for case in json.loads(samples.read_text())]


def mpi_peers(say: Callable[[str], None]) -> list[MpiJobs]:
    """Open MPI and MPICH, installed from their wheels where they are not yet."""
    return [MpiJobs(mpi_environment(name, say)) for name in OPTIONS]
