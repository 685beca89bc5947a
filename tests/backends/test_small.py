"""Small collectives that are over before anything is made for them, beside those that are not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import outcome

OPS = {
    dist.ReduceOp.SUM: lambda values: sum(values),
    dist.ReduceOp.AVG: lambda values: sum(values) / len(values),
    dist.ReduceOp.PRODUCT: np.prod,
    dist.ReduceOp.MAX: max,
    dist.ReduceOp.MIN: min,
}


async def meet() -> None:
    """All ranks' memory is open, and none is in an operation."""
    await dist.barrier()
    await dist.barrier()


@pytest.mark.parametrize("size", [2, 3, 4])
async def test_the_last_to_call_has_ended_when_the_call_returns(size: int) -> None:
    called = [asyncio.Event() for _ in range(size + 1)]
    at_once: list[int] = []

    async def main(rank: int) -> None:
        await meet()
        for start in (lambda x: dist.all_reduce(x), lambda _: dist.barrier()):
            data = np.full(5, rank + 1.0)
            if rank:
                await called[rank].wait()
            work = start(data)
            if work.is_completed():
                at_once.append(rank)
            called[rank + 1].set()
            await work
            await meet()
            if not rank:
                for event in called:
                    event.clear()
            await meet()

    await run_ranks(size, main, "shm", timeout=20)
    assert at_once == [size - 1] * 2


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
async def test_results_are_those_of_the_usual_way(op: dist.ReduceOp, dtype: str) -> None:
    """Whoever is last goes the short way, the others the usual one, by turns."""
    bits: dict[int, list[bytes]] = {rank: [] for rank in range(3)}

    async def main(rank: int) -> None:
        await meet()
        for step in range(6):
            data = torch.full((2, 3), (rank + 2) / 4, dtype=getattr(torch, dtype))
            if step % 3 == rank:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await dist.all_reduce(data, op)
            expected = OPS[op]([(r + 2) / 4 for r in range(3)])
            assert torch.allclose(data.double(), torch.full((2, 3), expected).double(), rtol=1e-2)
            bits[rank].append(bytes(data.view(torch.uint8).numpy().tobytes()))

    await run_ranks(3, main, "shm", timeout=20)
    assert bits[0] == bits[1] == bits[2]


async def test_ranks_that_disagree_are_told_whoever_comes_last() -> None:
    async def main(rank: int) -> None:
        await meet()
        for last in range(2):
            await meet()
            if rank == last:
                await asyncio.sleep(0.01)
            data = np.full(3 + rank, 1.0)
            error = await outcome(dist.all_reduce(data))
            assert isinstance(error, dist.CollectiveMismatchError)
            assert (data == 1).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_small_ones_behind_large_ones_keep_their_order() -> None:
    async def main(rank: int) -> None:
        await meet()
        for _ in range(5):
            large, small = np.full(300_000, 1.0), np.full(3, 1.0)
            works = [dist.all_reduce(large), dist.all_reduce(small), dist.barrier()]
            works += [dist.all_reduce(small), dist.all_reduce(large)]
            for work in works:
                await work
            assert (small == 9).all()
            assert (large == 9).all()

    await run_ranks(3, main, "shm", timeout=20)


async def test_the_recorder_knows_them_and_a_closed_group_refuses_them() -> None:
    async def main(rank: int) -> None:
        await meet()
        before = current_world().recorder.count
        data = np.ones(2)
        for _ in range(4):
            await dist.all_reduce(data)
        latest = current_world().recorder.latest(4)
        assert current_world().recorder.count == before + 4
        assert [record.sequence for record in latest] == sorted(
            (record.sequence for record in latest), reverse=True
        )
        assert all(record.created <= record.finished for record in latest)
        group = await dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        await dist.barrier(group)
        await dist.barrier(group)
        await dist.destroy_process_group(group)
        with pytest.raises(dist.GroupClosedError):
            dist.all_reduce(data, group=group)

    await run_ranks(2, main, "shm", timeout=20)
