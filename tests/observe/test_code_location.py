"""The line of the program that a rank's main thread is at, asked from another thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from aiodist.observe import code_location
from aiodist.observe.code_location import place
from aiodist.store.memory_store import MemoryStore

Waiting = Callable[[asyncio.Queue[int]], Awaitable[None]]


@pytest.fixture(scope="module", autouse=True)
def _libuv_pipe() -> None:
    """libuv opens a pipe at its first use and keeps it."""
    uvloop.new_event_loop().close()


async def in_a_queue(queue: asyncio.Queue[int]) -> None:
    await queue.get()


async def in_a_coroutine(queue: asyncio.Queue[int]) -> None:
    await in_a_queue(queue)


async def in_a_time_limit(queue: asyncio.Queue[int]) -> None:
    await asyncio.wait_for(queue.get(), 60)


async def place_in(waiting: Waiting) -> str:
    """Return the place that another thread sees while this task is in ``waiting``."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[int] = asyncio.Queue()
    places: list[str] = []

    def ask() -> None:
        places.append(place(loop))
        loop.call_soon_threadsafe(queue.put_nowait, 1)

    with ThreadPoolExecutor(1) as pool:
        loop.call_soon(
            pool.submit, ask
        )  # it runs once this task waits, without a frame of this file
        await waiting(queue)
    return places[0]


def line_of(function: Waiting) -> str:
    return f"test_code_location.py:{function.__code__.co_firstlineno + 1} in {function.__name__}"


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("waiting", "innermost", "source"),
    [
        (in_a_queue, in_a_queue, "await queue.get()"),
        (in_a_coroutine, in_a_queue, "await queue.get()"),
        (in_a_time_limit, in_a_time_limit, "await asyncio.wait_for(queue.get(), 60)"),
    ],
)
def test_the_main_task_s_line_is_told_while_the_loop_waits(
    waiting: Waiting,
    innermost: Waiting,
    source: str,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(place_in(waiting)) == f"{line_of(innermost)} ({source})"


def test_the_line_that_runs_is_told_while_a_task_computes() -> None:
    async def main() -> str:
        return place(asyncio.get_running_loop())

    assert (
        asyncio.run(main()) == f"test_code_location.py:{main.__code__.co_firstlineno + 1} in main"
    )


@pytest.fixture
def _no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on free-threaded Python, where no thread may read the frames of another one that runs."""
    monkeypatch.setattr(code_location, "_has_gil", lambda: False)
    monkeypatch.setattr(sys, "_current_frames", None)


@pytest.mark.usefixtures("_no_gil")
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_without_the_gil_the_loop_s_own_thread_looks(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> str:
        return place(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        waits = runner.run(place_in(in_a_coroutine))
        assert waits == f"{line_of(in_a_queue)} (await queue.get())"
        line = main.__code__.co_firstlineno + 1
        assert runner.run(main()) == f"test_code_location.py:{line} in main"


@pytest.mark.usefixtures("_no_gil")
def test_without_the_gil_a_loop_that_does_not_turn_has_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_location, "TURN_SECONDS", 0.001)
    loop = asyncio.new_event_loop()
    assert place(loop) == ""
    loop.close()
    assert place(loop) == ""


def test_a_task_in_an_operation_is_told_where_the_loop_has_no_main_task() -> None:
    loop = asyncio.new_event_loop()
    store = MemoryStore()
    places: list[str] = []

    async def idles() -> None:
        await asyncio.Event().wait()

    async def waits() -> None:
        await store.get("key")

    def ask() -> None:
        places.append(place(loop))
        loop.call_soon_threadsafe(loop.stop)

    tasks = [loop.create_task(idles()), loop.create_task(waits())]
    with ThreadPoolExecutor(1) as pool:
        loop.call_soon(pool.submit, ask)  # once both tasks wait
        loop.run_forever()
    line = waits.__code__.co_firstlineno + 1
    assert places == [f'test_code_location.py:{line} in waits (await store.get("key"))']
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))
    loop.close()
