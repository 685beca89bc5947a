"""Ranks that mean different operations, or other sizes than what comes, find out in words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import torch

import aiodist as dist
from aiodist.errors import CollectiveMismatchError
from aiodist.testing.in_process import run_ranks
from tests.operations.batch import placing


async def disagree(what: str, odd: bool) -> None:
    """One call, of which one rank's is another in the way that ``what`` says."""
    count = 5 if odd and what == "count" else 4
    tensor = torch.ones(count, dtype=torch.float64 if odd and what == "dtype" else torch.float32)
    if what == "root":
        await dist.reduce(tensor, 2 if odd else 0)
    elif what == "operation" and odd:
        await dist.barrier()
    else:
        await dist.all_reduce(tensor, "MAX" if odd and what == "op" else "SUM")


@pytest.mark.parametrize("transport", ["inproc", "shm", "hosts"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("op", ("4 x float32, SUM", "4 x float32, MAX")),
        ("dtype", ("4 x float32", "4 x float64")),
        ("count", ("4 x float32", "5 x float32")),
        ("operation", ("all_reduce", "barrier")),
        ("root", ("root 0", "root 2")),
    ],
)
async def test_ranks_that_disagree_are_told(
    what: str, words: tuple[str, str], transport: str
) -> None:
    """The same error on all that are still in the operation, with both sides; the group goes on."""
    told: dict[int, str] = {}

    async def on_rank(rank: int) -> None:
        try:
            await disagree(what, rank == 1)
        except CollectiveMismatchError as error:
            told[rank] = str(error)
        await dist.barrier()
        tensor = torch.ones(1)
        await dist.all_reduce(tensor)
        assert tensor.item() == 3

    way, hosts = placing(transport, 3)
    await run_ranks(3, on_rank, way, hosts=hosts, timeout=20)
    # Off the root a reduce may be over when the others find out: its message is on its way.
    waiting = {0} if transport in ("shm", "hosts") else {0, 2}
    assert set(told) >= (waiting if what == "root" else {0, 1, 2})
    assert all(word in message for message in told.values() for word in words), told


def ts(*lengths: int) -> list[torch.Tensor]:
    return [torch.ones(length) for length in lengths]


def gather(rank: int) -> dist.Work[None]:
    return dist.gather(torch.ones(4), ts(4, 5, 4) if rank == 0 else None, 0)


def gather_single(rank: int) -> dist.Work[None]:
    return dist.gather_single(torch.ones(5 if rank == 1 else 4), torch.ones(12), 0)


def scatter(rank: int) -> dist.Work[None]:
    return dist.scatter(torch.ones(4), ts(4, 5, 4) if rank == 0 else None, 0)


def all_gather(rank: int) -> dist.Work[None]:
    return dist.all_gather(ts(4, 4, 5) if rank == 1 else ts(4, 4, 4), torch.ones(4))


def all_gather_of_one_total(rank: int) -> dist.Work[None]:
    return dist.all_gather(ts(3, 4, 5) if rank == 1 else ts(4, 4, 4), torch.ones(4))


def all_gather_of_one_large_total(rank: int) -> dist.Work[None]:
    lengths = (30_000, 40_000, 50_000) if rank == 1 else (40_000, 40_000, 40_000)
    return dist.all_gather(ts(*lengths), torch.ones(40_000))


def reduce_scatter_of_one_large_total(rank: int) -> dist.Work[None]:
    lengths = (30_000, 40_000, 50_000) if rank == 1 else (40_000, 40_000, 40_000)
    return dist.reduce_scatter(torch.ones(40_000), ts(*lengths))


def all_to_all(rank: int) -> dist.Work[None]:
    return dist.all_to_all(ts(4, 4, 4), ts(4, 4, 5) if rank == 1 else ts(4, 4, 4))


def all_to_all_single(rank: int) -> dist.Work[None]:
    splits = [1, 1, 2] if rank == 1 else [1, 1, 1]
    return dist.all_to_all_single(torch.ones(3), torch.ones(sum(splits)), [1, 1, 1], splits)


def reduce_scatter(rank: int) -> dist.Work[None]:
    return dist.reduce_scatter(torch.ones(4), ts(4, 4, 5) if rank == 1 else ts(4, 4, 4))


def all_reduce_coalesced(rank: int) -> dist.Work[None]:
    return dist.all_reduce_coalesced(ts(4, 5) if rank == 1 else ts(5, 4))


def all_gather_coalesced(rank: int) -> dist.Work[None]:
    parts = (4, 5) if rank == 1 else (5, 4)
    return dist.all_gather_coalesced([ts(*parts) for _ in range(3)], ts(*parts))


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm", "hosts"])
@pytest.mark.parametrize(
    "call",
    [
        gather,
        gather_single,
        scatter,
        all_gather,
        all_gather_of_one_total,
        all_gather_of_one_large_total,
        reduce_scatter_of_one_large_total,
        all_to_all,
        all_to_all_single,
        reduce_scatter,
        all_reduce_coalesced,
        all_gather_coalesced,
    ],
)
async def test_sizes_that_do_not_fit(
    call: Callable[[int], Awaitable[None]], transport: str
) -> None:
    """An error where they meet, nothing hangs, and the group goes on."""
    told = set()

    async def on_rank(rank: int) -> None:
        try:
            await call(rank)
        except CollectiveMismatchError:
            told.add(rank)
        await dist.barrier()
        tensor = torch.ones(1)
        await dist.all_reduce(tensor)
        assert tensor.item() == 3

    way, hosts = placing(transport, 3)
    await run_ranks(3, on_rank, way, hosts=hosts, timeout=20)
    assert told


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("transport", ["inproc", "tcp", "unix", "shm", "hosts"])
async def test_no_rank_leaves_a_barrier_before_all_have_entered(size: int, transport: str) -> None:
    async def on_rank(rank: int) -> None:
        for step in range(5):
            late = (rank + step) % size
            for _ in range(late):  # each time another rank is the last
                await dist.all_reduce(torch.ones(1), group=alone[rank])
            entered[step].add(rank)
            await dist.barrier()
            assert len(entered[step]) == size

    entered: list[set[int]] = [set() for _ in range(5)]
    alone: dict[int, dist.ProcessGroup] = {}

    async def with_groups(rank: int) -> None:
        alone[rank], _ = await dist.new_subgroups(1)
        await on_rank(rank)

    way, hosts = placing(transport, size)
    await run_ranks(size, with_groups, way, hosts=hosts, timeout=20)
