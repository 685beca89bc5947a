"""A thread beside the owner's loop: it ends once, and not in the middle of its own end."""

from __future__ import annotations

import asyncio
import threading

from aiodist.links.loop_thread import LoopThread
from tests.limits import thread_ends


async def test_a_loop_thread_that_is_ended_several_times_finishes_its_cleanup() -> None:
    leaving, said = asyncio.Event(), list[str]()
    goes_on = threading.Event()

    async def main() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            loop_thread.tell(leaving.set)
            await asyncio.to_thread(goes_on.wait)
            said.append("goodbye")

    loop_thread = LoopThread("aiodist-test", main)
    loop_thread.start()
    assert loop_thread.ask(said.append, "asked")
    assert loop_thread.cancel()
    await leaving.wait()
    assert loop_thread.cancel()
    assert loop_thread.ask(goes_on.set)
    await loop_thread.close()
    loop_thread.stop()
    assert said == ["asked", "goodbye"]
    assert not loop_thread.ask(said.append, "too late")
    assert not loop_thread.cancel()


async def test_one_that_was_never_started_is_closed_at_once() -> None:
    loop_thread = LoopThread("aiodist-test", asyncio.Event().wait)
    loop_thread.stop()
    await loop_thread.close()


async def test_waiting_for_the_thread_leaves_no_task_behind() -> None:
    loop_thread = LoopThread("aiodist-test", asyncio.Event().wait)
    loop_thread.start()
    told = asyncio.get_running_loop().create_future()
    await loop_thread.wait_for(told, 0.01)
    assert not told.done()
    told.set_result(None)
    await loop_thread.wait_for(told)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await loop_thread.close()


async def test_the_owner_is_told_in_its_loop() -> None:
    told = asyncio.Event()

    async def main() -> None:
        loop_thread.tell(told.set)

    loop_thread = LoopThread("aiodist-test", main)
    loop_thread.start()
    await told.wait()
    await loop_thread.close()


def test_a_loop_thread_notices_that_its_owners_loop_is_closed() -> None:
    async def main() -> None:
        while not loop_thread.is_orphaned:  # noqa: ASYNC110  # as a task on this loop polls
            await asyncio.sleep(0.001)
        loop_thread.tell(said.append, "never delivered")

    async def begin() -> LoopThread:
        return LoopThread("aiodist-test", main)

    said: list[str] = []
    loop_thread = asyncio.run(begin())
    loop_thread.start()
    thread_ends("aiodist-test")
    assert said == []
