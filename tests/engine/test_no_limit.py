"""``math.inf`` means no time limit, for one operation and for a group; None means the group's."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

import aiodist as dist
from tests.engine.conftest import RunRanks

SHORT = 0.2


async def test_an_operation_without_limit_outlives_the_timeout_of_its_group(
    ranks: RunRanks,
) -> None:
    async def main(rank: int) -> None:
        x = np.zeros(2)
        if rank == 0:
            await asyncio.sleep(5 * SHORT)
            await dist.send(np.ones(2), 1)
            await dist.barrier(timeout=math.inf)
            await dist.barrier(timeout=math.inf)  # until the other's timeout has passed
            return
        assert await dist.recv(x, 0, timeout=math.inf) == 0
        assert x.tolist() == [1.0, 1.0]
        await dist.barrier(timeout=math.inf)
        with pytest.raises(dist.CollectiveTimeoutError):
            await dist.recv(x, 0, timeout=None)
        await dist.barrier(timeout=math.inf)

    await ranks(2, main, timeout=SHORT)


async def test_a_thread_waits_without_limit(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            await dist.send(np.ones(2), 1)
            return
        x = np.zeros(2)
        assert await asyncio.to_thread(dist.irecv(x, 0).wait, math.inf)
        assert x.tolist() == [1.0, 1.0]

    await ranks(2, main)


async def test_a_group_without_limit_has_operations_with_one(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group(timeout=math.inf)
        assert isinstance(group, dist.ProcessGroup)
        assert group.timeout is None
        with pytest.raises(dist.CollectiveTimeoutError):
            await dist.recv(np.zeros(1), 1 - rank, timeout=SHORT)
        await dist.barrier(group)
        await dist.barrier()

    await ranks(2, main, timeout=math.inf)
