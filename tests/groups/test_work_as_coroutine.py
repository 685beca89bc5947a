"""A work is a coroutine to asyncio: everything in asyncio that takes one takes a work."""

from __future__ import annotations

import asyncio
import collections.abc
import sys

import numpy as np
import pytest

import aiodist as dist
from aiodist.testing import run_ranks

TRANSPORTS = ["inproc", "shm"]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_task_group_takes_works(transport: str) -> None:
    async def main(rank: int) -> None:
        arrays = [np.full(3, rank + 1.0) for _ in range(3)]
        for _ in range(2):  # the second time over the short way of equal calls
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(dist.all_reduce(array)) for array in arrays]
            assert [task.result() for task in tasks] == [None] * 3
        assert [array.tolist() for array in arrays] == [[6.0] * 3] * 3

    await run_ranks(2, main, transport)


async def test_gather_wait_wait_for_and_as_completed_take_works(transport: str) -> None:
    async def main(rank: int) -> None:
        x = np.ones(2)
        assert await asyncio.gather(dist.all_reduce(x), dist.barrier()) == [None, None]
        await asyncio.wait_for(dist.all_reduce(x), 60)
        done, rest = await asyncio.wait([asyncio.ensure_future(dist.all_reduce(x))])
        assert (len(done), len(rest)) == (1, 0)
        for each in asyncio.as_completed([dist.all_reduce(x), dist.barrier()]):
            await each
        assert x.tolist() == [16.0, 16.0]

    await run_ranks(2, main, transport)


async def test_two_tasks_and_an_await_share_a_work() -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            await dist.barrier()
            await dist.send(np.ones(3), 0)
            return
        work = dist.irecv(np.zeros(3), 1)
        tasks = [asyncio.create_task(work), asyncio.create_task(work)]
        await dist.barrier()
        assert await work == 1
        assert await asyncio.gather(*tasks) == [1, 1]

    await run_ranks(2, main)


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancelled_task_cancels_its_operation(turns: int) -> None:
    """Also one that is cancelled before its first step."""

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.irecv(np.zeros(3), 1)
            task = asyncio.create_task(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert work.cancelled()
        await dist.barrier()

    await run_ranks(2, main)


async def test_a_task_has_the_error_and_the_name_of_its_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(rank: int) -> None:
        task = asyncio.create_task(dist.irecv(np.zeros(3), 1 - rank, timeout=0.05))
        with monkeypatch.context() as shutting_down:
            shutting_down.setitem(sys.modules, "aiodist.tensors", None)
            assert "recv()" in repr(task)
        with pytest.raises(dist.CollectiveTimeoutError):
            await task
        await dist.barrier()

    await run_ranks(2, main)


async def test_a_closed_work_is_given_up() -> None:
    async def main(rank: int) -> None:
        work = dist.irecv(np.zeros(3), 1 - rank)
        assert isinstance(work, collections.abc.Coroutine)
        work.close()
        assert work.cancelled()
        await dist.barrier()

    await run_ranks(2, main)


async def test_works_are_awaited_in_asyncios_debug_mode() -> None:
    asyncio.get_running_loop().set_debug(True)

    async def main(rank: int) -> None:
        x = np.ones(2)
        async with asyncio.TaskGroup() as group:
            group.create_task(dist.all_reduce(x))
        await dist.barrier()

    await run_ranks(2, main)
