"""The operation matrix of the engine, over MPI."""

from __future__ import annotations

import pytest

from tests.backends.mpi.conftest import RANK, Job


@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_matrix(job: Job, size: int) -> None:
    assert "matrix:matrix: ok" in job(size, RANK, "matrix:matrix")
