"""An operation of the torch backend, as the thread sees it that waits for its end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.deadline import SIGNAL_SECONDS
from aiodist.groups.world import World, current_world, use_world
from aiodist.testing import run_ranks
from aiodist.torch_backend.futures import Completions
from aiodist.torch_backend.submission import Operation, all_started
from aiodist.torch_backend.worlds import TorchWorld
from aiodist.worker_thread import Worker
from tests.limits import scaled


class SlowLock:
    """A lock that is free when it has been asked for the third time."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def acquire(self, *, timeout: float = -1) -> bool:
        self.asked.append(timeout)
        return len(self.asked) == 3

    def release(self) -> None:
        pass


class SlowCondition(SlowLock):
    """A condition that holds when it has been waited for three times."""

    def __init__(self, completions: Completions) -> None:
        super().__init__()
        self._completions = completions

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self, timeout: float = -1) -> bool:
        self._completions._ordered = not self.acquire(timeout=timeout)
        return True


def test_a_thread_that_waits_sleeps_for_a_second_at_a_time_so_that_no_signal_is_lost() -> None:
    lock = SlowLock()
    operation = Operation(lambda function: None)
    operation._gate = lock  # type: ignore[assignment]
    operation.block()
    assert lock.asked == [SIGNAL_SECONDS] * 3


def test_a_thread_that_waits_for_callbacks_sleeps_for_a_second_at_a_time() -> None:
    completions = Completions()
    condition = SlowCondition(completions)
    completions._changed = condition  # type: ignore[assignment]
    completions._ordered = 1
    completions.wait_for_callbacks()
    assert condition.asked == [SIGNAL_SECONDS] * 3


@pytest.mark.parametrize("kind", [Completions, partial(Worker, "aiodist-test")])
def test_a_thread_that_could_not_start_is_started_by_the_next_call(
    kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is handed to it waits for ever."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def hand_over() -> None:
        if isinstance(waiting, Worker):
            waiting.put(done.set)
        else:
            ended: Any = SimpleNamespace(block=done.set)
            waiting.add(ended, torch.futures.Future(), False)

    waiting, done = kind(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            hand_over()
    hand_over()
    assert done.wait(scaled(10))
    waiting.close()


def test_an_operation_is_failed_once_its_time_is_over() -> None:
    posted: list[Callable[[], None]] = []

    def post(function: Callable[[], None]) -> None:
        posted.append(function)
        operation.end(TimeoutError())

    operation = Operation(post)
    with pytest.raises(TimeoutError):
        operation.wait(0.01)
    assert len(posted) == 1


async def test_an_operation_is_given_up_if_the_next_one_of_its_call_is_refused() -> None:
    """Its own rank is told nothing of it, and another rank would wait in the next one."""

    async def on_rank(rank: int) -> None:
        x, y = np.ones(3), np.ones(3)

        def starting() -> Iterator[dist.Work[None]]:
            yield dist.broadcast(x, src=1)
            yield dist.broadcast([1.0] if rank == 0 else y, src=1)  # type: ignore[type-var]

        if rank == 0:
            with pytest.raises(TypeError):
                all_started(starting())
            await dist.recv(y, 1)  # the first one has not ended before
            assert x.tolist() == [1.0] * 3
        else:
            await dist.send(y, 0)
            with pytest.raises(dist.CollectiveCancelledError, match="rank 0 cancelled broadcast"):
                await dist.broadcast(2 * x, src=1)

    await run_ranks(2, on_rank)


def test_ctrl_c_in_a_call_within_a_running_loop_cancels_it() -> None:
    """As in a notebook's cell: the call waits for the portal's loop while the kernel's stands still."""
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def cell() -> None:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        TorchWorld(World())._run(forever)

    before, handler = current_world(), signal.signal(signal.SIGINT, signal.default_int_handler)
    with closing(asyncio.new_event_loop()) as loop:
        try:
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(cell())
        finally:
            signal.signal(signal.SIGINT, handler)
            use_world(before)
    assert cancelled == [True]
