"""How the blocking API starts an operation in a thread that has borrowed the loop."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.groups.completed_work import CompletedWork
from aiodist.groups.operation import Barrier
from aiodist.groups.work import Work
from aiodist.groups.world import World, current_world, use_world
from aiodist.observe.recorder import Record
from aiodist.sync.portal import Portal

RECORD = (1,)
ENDED = SimpleNamespace(is_completed=lambda: True, result=lambda: "the result")


class Api:
    """A portal whose loop stands still for each call, and a world that lives on that loop."""

    def __init__(self) -> None:
        self.portal = Portal()
        self.loop = self.portal.enter()
        self.handoff = self.portal.handoff
        self.world = World()
        self.world.its_loop = self.loop
        self._borrow = self.handoff.acquire
        self.handoff.acquire = self._borrow_in_the_end  # type: ignore[method-assign]

    def _borrow_in_the_end(self) -> bool:
        end = time.monotonic() + 10
        while not self._borrow():
            time.sleep(0)
            assert time.monotonic() < end
        return True

    def call(self, start: Callable[..., Any], timeout: float | None = None) -> Any:
        """Start an operation by ``start`` of the group's backend."""
        backend = SimpleNamespace(start=start)
        group: Any = SimpleNamespace(world=self.world, backend=backend, start=start, label=None)
        return self.portal.start(False, group, Barrier(), timeout)


@pytest.fixture
def api() -> Iterator[Api]:
    before, api = current_world(), Api()
    use_world(api.world)
    yield api
    use_world(before)
    # The loop's thread holds the lock, too, but not for long; a call that kept it does for ever.
    given_back = api.handoff.loop_lock.acquire(timeout=10)
    if given_back:
        api.handoff.loop_lock.release()
    api.portal.leave()
    assert given_back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_operation_that_completed_at_once_has_no_result(api: Api) -> None:
    asked: list[Any] = []

    def start(operation: Any, timeout: float | None) -> tuple[int]:
        asked.append((operation.kind, timeout, asyncio._get_running_loop()))
        return RECORD

    assert api.call(start) is None
    assert api.call(start, 2) is None
    assert asked == [("barrier", None, None), ("barrier", 2.0, None)]


def test_an_operation_with_a_handle_gives_its_result(api: Api) -> None:
    for _ in range(2):
        assert api.call(lambda *_: ENDED) == "the result"


def test_a_world_of_another_loop_starts_it_there(api: Api) -> None:
    api.world.its_loop = loop = asyncio.new_event_loop()
    asked: list[Any] = []

    def start(operation: Any, timeout: float | None, begin: Any) -> CompletedWork[str]:
        asked.append((operation.kind, timeout, asyncio._get_running_loop()))
        return CompletedWork(loop, RECORD, False, "started")  # type: ignore[arg-type]  # of no use here

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert api.call(start, 2) == "started"
        assert asked == [("barrier", 2.0, loop)]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_wrong_arguments_are_refused_and_the_loop_goes_on(api: Api) -> None:
    def start(*_: object) -> None:
        raise TypeError("tensor must be a torch.Tensor")

    with pytest.raises(TypeError, match="must be"):
        api.call(start)
    assert api.portal.call(lambda: ENDED, True) == "the result"


def test_ctrl_c_waits_until_the_operation_has_started(api: Api) -> None:
    """What is published already can only be cancelled and reported."""
    steps = []

    def start(*_: object) -> tuple[int]:
        signal.raise_signal(signal.SIGINT)
        steps.append("to the end")
        return RECORD

    with pytest.raises(KeyboardInterrupt):
        api.call(start)
    assert steps == ["to the end"]


def test_an_operation_that_fails_as_its_call_is_interrupted_is_not_logged(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(*_: object) -> Work[None]:
        label: Any = None
        context: Any = SimpleNamespace(
            waiting_for=tuple, close=lambda error: error, postpones=lambda *_: False
        )
        return Work(api.loop, context, Record(-1, label, -1, ("barrier", -1, -1, b"", -1), 0))

    def drive(loop: object, work: Work[None], held: bool) -> None:
        work._fail(RuntimeError("another rank has cancelled it"))
        raise KeyboardInterrupt

    monkeypatch.setattr(api.portal, "_drive", drive)
    with pytest.raises(KeyboardInterrupt):
        api.call(start)
    gc.collect()
    assert api.portal.call(lambda: ENDED, False) is ENDED  # behind what was posted
    assert not caplog.records
