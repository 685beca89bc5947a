from __future__ import annotations

import asyncio
import threading

import pytest

import aiodist as dist
from aiodist.groups.work_future import WorkFuture


def test_a_value_before_its_time_is_refused() -> None:
    future: WorkFuture[int] = WorkFuture()
    with pytest.raises(dist.InvalidUsageError, match="wait"):
        future.value()
    future.set_result(4)
    assert future.value() == future.wait() == 4


async def test_the_loops_thread_is_told_that_it_cannot_wait_for_a_future_of_its_own() -> None:
    loop = asyncio.get_running_loop()
    future: WorkFuture[int] = WorkFuture(loop)
    for one in (future, future.then(lambda done: done.value())):
        with pytest.raises(dist.InvalidUsageError, match="wrap_future"):
            one.wait()
        with pytest.raises(dist.InvalidUsageError, match="wrap_future"):
            one.exception()
    loop.call_soon(future.set_result, 4)
    assert await asyncio.wrap_future(future) == 4
    assert future.wait() == 4


def test_then_of_a_complete_future_runs_here() -> None:
    future: WorkFuture[int] = WorkFuture()
    future.set_result(4)
    thread = future.then(lambda done: (done.value(), threading.current_thread())).value()
    assert thread == (4, threading.current_thread())


def test_then_runs_apart_from_the_code_that_completes_the_future() -> None:
    future: WorkFuture[int] = WorkFuture()
    gate = threading.Event()

    def callback(done: WorkFuture[int]) -> int:
        gate.wait()
        return done.value() + 1

    following = future.then(callback)
    future.set_result(4)  # returns, whatever the callback waits for
    assert not following.done()
    gate.set()
    assert following.wait() == 5
    assert following.then(lambda done: done.value() * 2).wait() == 10


def test_then_fails_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    future: WorkFuture[int] = WorkFuture()
    following = future.then(lambda done: done.value())
    monkeypatch.setattr(threading.Thread, "start", start)
    future.set_result(4)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        following.result(0)


def test_errors_are_those_of_the_operation_and_of_the_callback() -> None:
    future: WorkFuture[int] = WorkFuture()
    following = future.then(lambda done: done.value())
    future.set_exception(dist.CollectiveTimeoutError("late"))
    with pytest.raises(dist.CollectiveTimeoutError, match="late"):
        following.wait()
    with pytest.raises(ZeroDivisionError):
        future.then(lambda done: 1 // 0).wait()
