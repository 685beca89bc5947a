"""Operations that are called in a thread without the loop, and start in the loop."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
import aiodist.sync as sync
from aiodist.errors import (
    GroupClosedError,
    GroupRevokedError,
    InvalidUsageError,
)
from aiodist.groups.world import World, current_world, use_world
from aiodist.testing import run_ranks


async def test_run_coroutine_threadsafe_takes_an_operation_called_in_a_thread() -> None:
    async def main(rank: int) -> None:
        loop = asyncio.get_running_loop()
        x = np.full(3, rank + 1.0)

        def in_thread() -> Any:
            asyncio.run_coroutine_threadsafe(dist.all_reduce(x), loop).result(60)
            message = dist.send(x, 1) if rank == 0 else dist.irecv(np.zeros(3), 0)
            return asyncio.run_coroutine_threadsafe(message, loop).result(60)

        assert await asyncio.to_thread(in_thread) == (None if rank == 0 else 0)
        assert x.tolist() == [3.0] * 3
        await dist.barrier()

    await run_ranks(2, main)


async def test_a_deferred_work_says_that_it_has_not_started() -> None:
    async def main(rank: int) -> None:
        work = await asyncio.to_thread(dist.barrier)
        assert repr(work) == "<Work barrier(): starts when it is awaited>"
        await work
        assert repr(work) == "<Work: done>"

    await run_ranks(2, main)


async def test_a_deferred_work_is_waited_for_like_any_other() -> None:
    async def main(rank: int) -> None:
        loop = asyncio.get_running_loop()
        x = np.ones(3)

        def in_thread() -> dist.Work[None]:
            assert dist.all_reduce(x).wait(60)
            dist.all_reduce(x).get_future().result(60)
            return dist.all_reduce(x)

        work = await asyncio.to_thread(in_thread)
        assert repr(work) == "<Work all_reduce(): starts when it is awaited>"
        assert not work.is_completed()
        await work
        assert work.is_success()
        assert x.tolist() == [8.0] * 3

        async def elsewhere() -> None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(dist.barrier(), loop))

        await asyncio.to_thread(asyncio.run, elsewhere())

    await run_ranks(2, main)


async def test_a_thread_may_ask_a_deferred_work_until_it_has_ended() -> None:
    async def main(rank: int) -> None:
        x = np.ones(3)

        def in_thread() -> None:
            work = dist.all_reduce(x)
            end = time.monotonic() + 5
            while not work.done() and time.monotonic() < end:
                time.sleep(1e-3)
            assert work.is_success()

        await asyncio.to_thread(in_thread)
        assert x.tolist() == [2.0] * 3

    await run_ranks(2, main)


async def test_errors_of_a_deferred_call_are_raised_at_the_wait() -> None:
    async def main(rank: int) -> None:
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            with pytest.raises(dist.InvalidUsageError, match="out of range"):
                dist.send(np.ones(1), 7)  # what needs no loop is checked at the call
            broken = dist.all_reduce([1.0])
            with pytest.raises(TypeError):
                asyncio.run_coroutine_threadsafe(broken, loop).result(60)
            with pytest.raises(dist.CollectiveTimeoutError):
                dist.irecv(np.zeros(1), 1 - rank).wait(0.05)
            given_up = dist.irecv(np.zeros(1), 1 - rank)
            assert given_up.cancel()

        await asyncio.to_thread(in_thread)
        await dist.barrier()

    await run_ranks(2, main)


async def test_one_that_never_starts_warns() -> None:
    async def main(rank: int) -> None:
        await asyncio.to_thread(forget)
        await dist.barrier()

    def forget() -> None:
        dist.barrier()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RuntimeWarning)
        await run_ranks(1, main)
        gc.collect()
    assert [str(each.message) for each in found] == ["barrier() was never awaited or waited for"]


@pytest.mark.parametrize("asks", [False, True])
async def test_a_failure_that_no_thread_asks_for_is_logged(
    asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def in_thread() -> None:
        work = dist.irecv(np.zeros(1), 1, timeout=0.01)
        while not work.is_completed():
            time.sleep(0.005)
        if asks:
            assert isinstance(work.exception(), dist.CollectiveTimeoutError)

    async def main(rank: int) -> None:
        if rank == 0:
            await asyncio.to_thread(in_thread)
        await dist.barrier()

    await run_ranks(2, main)
    gc.collect()
    failed = [each for each in caplog.messages if "failed and was not awaited: recv" in each]
    assert len(failed) == (not asks)


async def test_blocking_calls_in_a_thread_join_the_world_of_the_loop() -> None:
    async def main(rank: int) -> None:
        x = np.full(3, rank + 1.0)

        def forward() -> int:
            sync.all_reduce(x)
            work = sync.all_reduce(x, async_op=True)
            assert work is not None
            assert work.wait(60)
            if rank == 0:
                sync.send(x, 1)
                return -1
            return sync.recv(np.zeros(3), 0)

        assert await asyncio.to_thread(forward) == (-1 if rank == 0 else 0)
        assert x.tolist() == [6.0] * 3
        await dist.barrier()

    await run_ranks(2, main)


def test_a_runner_takes_works_one_by_one() -> None:
    def on(runner: asyncio.Runner, call: Callable[[], Any]) -> Any:
        return runner.run(call())

    use_world(World())
    x = np.ones(3)
    with asyncio.Runner() as runner:
        on(runner, lambda: dist.init_process_group(rank=0, world_size=1))
        on(runner, lambda: dist.all_reduce(x))
        on(runner, dist.barrier)
        on(runner, dist.destroy_process_group)
    use_world(World())


def test_a_loop_that_does_not_run_is_not_waited_for(tmp_path: Path) -> None:
    """Between two calls of a Runner: a blocking wait ends by its timeout, an abort is done later."""
    meeting = f"file://{tmp_path}/meeting"

    async def other() -> None:
        async with dist.process_group(init_method=meeting, rank=1, world_size=2):
            with pytest.raises(GroupRevokedError, match="rank 0 aborted"):
                await dist.recv(np.ones(1), 0)

    async def begin() -> Any:
        await dist.init_process_group(init_method=meeting, rank=0, world_size=2)
        return dist.recv(np.ones(1), 1)

    async def end() -> None:
        with pytest.raises(GroupClosedError, match="rank 0 aborted"):
            await work
        await dist.destroy_process_group()

    def run_other() -> None:
        use_world(World())
        asyncio.run(other())

    use_world(World())
    with ThreadPoolExecutor(1) as thread, asyncio.Runner() as runner:
        ended = thread.submit(run_other)
        work = runner.run(begin())
        with pytest.raises(InvalidUsageError, match="its event loop does not run"):
            work.wait(0.05)
        current_world().default_group().abort()
        runner.run(end())
        ended.result(60)
    use_world(World())


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_question_after_the_end_of_the_loop_changes_no_outcome(has_ended: bool) -> None:
    async def main() -> Any:
        async with dist.process_group(rank=0, world_size=1):
            work = await asyncio.to_thread(dist.all_reduce, np.ones(3))
            return (await work, work)[1] if has_ended else work

    use_world(World())
    work = asyncio.run(main())
    if has_ended:
        assert work.get_future().result(0) is None
        assert work.result() is None
    else:
        with pytest.raises(GroupClosedError, match="the event loop of this group has ended"):
            work.get_future().result(0)
    use_world(World())


async def test_a_receive_called_in_a_thread_that_ends_as_its_task_is_cancelled_loses_no_message() -> (
    None
):
    async def main(rank: int) -> None:
        if rank == 0:
            for number in (1, 2):
                await dist.send_object(number, 1)
            return
        work = await asyncio.to_thread(dist.recv_object, 0)
        work.add_done_callback(lambda _: task.cancel())  # before the task hears of the end
        task = asyncio.create_task(work)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [(await dist.recv_object(0)).obj for _ in range(2)] == [1, 2]

    await run_ranks(2, main)
