"""All that runs well over MPI, in one job for each number of ranks: starting one is what costs."""

from __future__ import annotations

import pytest

from tests.backends.mpi.conftest import RANK, Job

PROGRAMS = {
    2: ["matrix:matrix", "reductions:reductions", "failures:failures", "agreement:agreement"],
    3: [
        "matrix:matrix",
        "reductions:reductions",
        "agreement:agreement",
        "messages:messages",
        "groups:groups",
    ],
}


@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize("size", PROGRAMS)
def test_programs(job: Job, size: int) -> None:
    output = job(size, RANK, *PROGRAMS[size])
    for program in PROGRAMS[size]:
        assert f"{program}: ok" in output
