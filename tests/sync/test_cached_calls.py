"""What the blocking API tries first, in a thread that has borrowed the loop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.groups.world import World, current_world, use_world
from aiodist.sync import adapter
from aiodist.sync.portal import Portal

GROUP: Any = object()
ENDED = SimpleNamespace(is_completed=lambda: True, result=lambda: "the general path")


class Api:
    """A portal whose loop stands still for each call, and a world that lives on that loop."""

    def __init__(self) -> None:
        self.portal = Portal()
        self.loop = self.portal.enter()
        self.handoff = self.portal._handoff
        self.world = World()
        self.world._loop = self.loop
        self.world.default = GROUP
        self._borrow = self.handoff.acquire
        self.handoff.acquire = self._borrow_in_the_end  # type: ignore[method-assign]

    def _borrow_in_the_end(self) -> bool:
        end = time.monotonic() + 10
        while not self._borrow():
            self.loop.call_soon_threadsafe(self.handoff.park)
            time.sleep(1e-4)
            assert time.monotonic() < end
        return True

    def call(self, run_cached: Callable[..., Any], *args: Any) -> Any:
        return self.portal.apply(lambda *_: ENDED, True, args, {}, run_cached)


@pytest.fixture
def api() -> Iterator[Api]:
    before, api = current_world(), Api()
    use_world(api.world)
    yield api
    use_world(before)
    assert not api.handoff._turn.locked()
    api.portal.leave()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_operation_that_completed_at_once_is_not_started_again(api: Api) -> None:
    asked: list[Any] = []

    def run_cached(*given: Any) -> tuple[int]:
        asked.append((*given, asyncio._get_running_loop()))
        return (1,)

    assert api.call(run_cached, 2, 3) is None
    assert asked == [(GROUP, (2, 3), {}, None)]


def test_an_operation_that_cannot_complete_at_once_takes_the_general_path(api: Api) -> None:
    for _ in range(2):
        assert api.call(lambda *_: None) == "the general path"


def test_a_world_of_another_loop_is_not_asked(api: Api) -> None:
    api.world._loop = asyncio.new_event_loop()
    try:
        assert api.call(lambda *_: pytest.fail("asked")) == "the general path"
    finally:
        api.world._loop.close()


def test_nothing_is_asked_where_nothing_is_initialised(api: Api) -> None:
    api.world.default = None
    assert api.call(lambda *_: pytest.fail("asked")) == "the general path"


@pytest.mark.parametrize("named", ["group", "timeout"])
def test_a_call_with_a_group_or_a_timeout_takes_the_general_path(
    api: Api, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """It is tried for the default group alone; what else is said by name it looks at itself."""
    monkeypatch.setattr(adapter, "portal", lambda: api.portal)
    options: dict[str, Any] = {"group": None, "timeout": None, "group_src": None}

    def call() -> tuple[Any, dict[str, Any]]:
        given: dict[str, Any] = {}
        asked = adapter.start(
            False,
            lambda *_, **kwargs: given.update(kwargs) or ENDED,
            (1,),
            run_cached=lambda *args: looked.append(args) or (1,),
            **options,
        )
        return asked, given

    looked: list[Any] = []
    options["group_src"] = 3
    assert call() == (None, {})
    assert looked == [(GROUP, (1,), {"group_src": 3})]
    options[named] = 0
    asked, given = call()
    assert asked == "the general path"
    assert given[named] == 0


def test_wrong_arguments_are_refused_and_the_loop_goes_on(api: Api) -> None:
    def run_cached(*_: object) -> None:
        raise TypeError("op must be a ReduceOp")

    with pytest.raises(TypeError, match="ReduceOp"):
        api.call(run_cached)
    assert api.portal.call(lambda: ENDED, True) == "the general path"


def test_ctrl_c_waits_until_the_cached_call_is_over(api: Api) -> None:
    steps = []

    def run_cached(*_: object) -> tuple[int]:
        signal.raise_signal(signal.SIGINT)
        steps.append("to the end")
        return (1,)

    with pytest.raises(KeyboardInterrupt):
        api.call(run_cached)
    assert steps == ["to the end"]


def test_ctrl_c_interrupts_no_operation_between_the_cached_and_the_general_path(api: Api) -> None:
    """It is published by then: only an operation in progress can be cancelled and reported."""
    steps = []

    def run_cached(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("published")

    def begin() -> Any:
        steps.append("started")
        return ENDED

    with pytest.raises(KeyboardInterrupt):
        api.portal.apply(begin, True, (), {}, run_cached)
    assert steps == ["published", "started"]
