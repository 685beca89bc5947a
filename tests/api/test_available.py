"""What there is, as it can be asked for before anybody has met."""

from __future__ import annotations

import pytest

import aiodist as dist
from aiodist.testing import run_ranks


def test_availability_queries_answer_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.is_backend_available("GLOO")
    assert not dist.is_backend_available("mpi")
    assert not dist.is_backend_available("no such backend")
    for name in ("LOCAL_RANK", "RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not dist.is_torchelastic_launched()
    with pytest.raises(dist.InvalidUsageError, match="pass fallback_rank"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(fallback_rank=0) == 0
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert dist.get_node_local_rank() == 1
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank(0) == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert dist.is_torchelastic_launched()


def test_the_number_of_ranks_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(dist.InvalidUsageError, match="pass fallback_size"):
        dist.get_node_local_size()
    assert dist.get_node_local_size(2) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert dist.get_node_local_size(2) == 4


async def test_ranks_on_this_host_are_counted_without_a_launcher() -> None:
    async def on_rank(rank: int) -> int:
        return dist.get_node_local_size()

    assert await run_ranks(3, on_rank) == [3, 3, 3]
