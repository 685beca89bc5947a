"""All that runs well over MPI, in one job for each number of ranks: starting one is what costs."""

from __future__ import annotations

import pytest

from benchmarks.mpi_environment import MpiEnvironment
from tests.backends.mpi.conftest import RANK, Job

ALL_CASES = ["matrix:matrix", "reductions:reductions"]
"""On two ranks of the one library and three of the other: they take seconds on each."""

PROGRAMS = {
    ("openmpi", 2): [*ALL_CASES, "failures:failures", "agreement:agreement"],
    ("openmpi", 3): ["agreement:agreement", "messages:messages", "groups:groups"],
    ("mpich", 2): ["failures:failures", "agreement:agreement"],
    ("mpich", 3): [*ALL_CASES, "agreement:agreement", "messages:messages", "groups:groups"],
}


@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize(("mpi", "size"), PROGRAMS, indirect=["mpi"])
def test_programs(job: Job, mpi: MpiEnvironment, size: int) -> None:
    programs = PROGRAMS[mpi.name, size]
    output = job(size, RANK, *programs)
    for program in programs:
        assert f"{program}: ok" in output
