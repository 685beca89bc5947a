"""All that runs well over MPI, in one job for each number of ranks: starting one is what costs.

``make test`` runs each program on one of the libraries, ``make test-examples`` the others.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.mpi.conftest import RANK, Job

ALL_CASES = ("matrix:matrix", "reductions:reductions")
"""On two ranks of the one library and three of the other: they take seconds on each."""

ON_ANY_RANKS = ("failures:failures", "agreement:agreement")
ON_THREE_RANKS = ("agreement:agreement", "messages:messages", "groups:groups")


def job_of(mpi: str, size: int, programs: tuple[str, ...], *marks: pytest.MarkDecorator) -> Any:
    first = programs[0].partition(":")[0]
    return pytest.param(mpi, size, programs, marks=marks, id=f"{mpi}-{size}-{first}")


@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mpi", "size", "programs"),
    [
        job_of("openmpi", 2, (*ALL_CASES, *ON_ANY_RANKS)),
        job_of("openmpi", 3, ON_THREE_RANKS, pytest.mark.examples),
        job_of("mpich", 2, ON_ANY_RANKS, pytest.mark.examples),
        job_of("mpich", 3, ON_THREE_RANKS),
        job_of("mpich", 3, ALL_CASES, pytest.mark.examples),
    ],
    indirect=["mpi"],
)
def test_programs(job: Job, size: int, programs: tuple[str, ...]) -> None:
    output = job(size, RANK, *programs)
    for program in programs:
        assert f"{program}: ok" in output
