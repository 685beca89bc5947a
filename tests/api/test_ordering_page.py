"""What docs/ordering.md says of collectives, and no other test shows."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

import aiodist as dist
from aiodist.testing import run_ranks
from tests.limits import scaled


async def test_collectives_pair_by_the_order_of_their_calls_not_of_their_awaits():
    async def main(rank):
        a, b = np.full(1, 1.0), np.full(1, 10.0)
        first, second = dist.all_reduce(a), dist.all_reduce(b)
        for work in (first, second) if rank else (second, first):
            await work
        return a[0], b[0]

    async with asyncio.timeout(scaled(10)):
        assert await run_ranks(2, main) == [(2.0, 20.0)] * 2


async def test_a_cancelled_collective_fails_on_all_ranks_and_the_group_goes_on():
    async def main(rank):
        data = np.ones(1)
        work = asyncio.ensure_future(dist.all_reduce(data, timeout=math.inf))
        if rank == 0:
            await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            with pytest.raises(dist.CollectiveCancelledError) as caught:
                await work
            assert caught.value.rank == 0
        await dist.barrier()

    async with asyncio.timeout(scaled(10)):
        await run_ranks(2, main)


async def test_a_shielded_operation_goes_on_when_its_waiter_is_cancelled():
    waited = asyncio.Event()

    async def main(rank):
        data = np.ones(1)
        if rank == 1:
            await waited.wait()
            await dist.all_reduce(data)
            return data[0]
        work = dist.all_reduce(data)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.shield(work)
        waited.set()
        await work
        return data[0]

    async with asyncio.timeout(scaled(10)):
        assert await run_ranks(2, main) == [2.0, 2.0]
