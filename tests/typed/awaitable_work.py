"""What asyncio takes a Work for, with the types of the results. `make types` checks it; nothing runs it."""

from __future__ import annotations

import asyncio
from typing import assert_type

import numpy as np

import aiodist as dist


async def takes_works() -> None:
    """Pass works wherever asyncio takes a coroutine."""
    x = np.ones(3)
    assert_type(await dist.all_reduce(x), None)
    assert_type(await dist.irecv(x), int)
    assert_type(await asyncio.create_task(dist.irecv(x)), int)
    assert_type(await asyncio.gather(dist.irecv(x), dist.barrier()), tuple[int, None])
    assert_type(await asyncio.wait_for(dist.irecv(x), 1), int)
    done, _ = await asyncio.wait([asyncio.ensure_future(dist.irecv(x))])
    assert_type(done, set[asyncio.Task[int]])
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(dist.irecv(x)), asyncio.Task[int])
    future = asyncio.run_coroutine_threadsafe(dist.irecv(x), asyncio.get_running_loop())
    assert_type(future.result(), int)


def runs_a_work() -> None:
    """Run a loop for one work."""
    asyncio.run(dist.barrier())
