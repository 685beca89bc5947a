"""The thread of the heartbeats, where it cannot start or its start is cancelled."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import pytest

from aiodist.errors import DistNetworkError
from aiodist.links import loop_thread
from aiodist.liveness import HeartbeatThread
from aiodist.liveness.failure_detector import FailureDetector
from aiodist.liveness.loss_notice import LossNotice
from tests.limits import scaled, thread_ends, until


def no_descriptor() -> asyncio.AbstractEventLoop:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_heartbeat_thread_that_cannot_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio, "SelectorEventLoop", no_descriptor)  # that of the thread
    lost: list[LossNotice] = []
    heartbeat = HeartbeatThread(0, 2, (), 10.0)
    async with asyncio.timeout(scaled(5)):
        with pytest.raises(DistNetworkError, match=r"cannot send heartbeats.*Too many.*ulimit -n$"):
            await heartbeat.open(str, lost.append, lambda *_: None)
        await heartbeat.close()
    assert lost == []


async def test_a_rank_that_may_start_no_thread_says_how_to_do_without_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    heartbeat = HeartbeatThread(0, 2, (), 10.0)
    with pytest.raises(DistNetworkError, match=r"can't start new thread; liveness_timeout=0 turns"):
        await heartbeat.open(str, lambda _: None, lambda *_: None)
    await heartbeat.close()


async def test_a_cancelled_open_leaves_the_thread_to_close_and_blocks_no_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_the_thread, go_on = threading.Event(), threading.Event()

    async def held(detector: FailureDetector) -> tuple[str, ...]:
        in_the_thread.set()
        go_on.wait()
        return ()

    monkeypatch.setattr(loop_thread, "_JOIN_SECONDS", 1000.0)
    monkeypatch.setattr(FailureDetector, "open", held)
    heartbeat = HeartbeatThread(0, 2, (), 10.0)
    opening = asyncio.create_task(heartbeat.open(str, lambda _: None, lambda *_: None))
    await until(in_the_thread.is_set)
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    go_on.set()
    await heartbeat.close()
    thread_ends("aiodist-heart")
