"""What the blocking door tries first, in a thread that has borrowed the loop."""

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
ENDED = SimpleNamespace(is_completed=lambda: True, result=lambda: "the usual way")


class Door:
    """A portal whose loop stands still for each call, and a world that lives on that loop."""

    def __init__(self) -> None:
        self.portal = Portal()
        self.loop = self.portal.enter()
        self.loan = self.portal._loan
        self.world = World()
        self.world._loop = self.loop
        self.world.default = GROUP
        self._borrow = self.loan.borrow
        self.loan.borrow = self._borrow_in_the_end  # type: ignore[method-assign]

    def _borrow_in_the_end(self) -> bool:
        end = time.monotonic() + 10
        while not self._borrow():
            self.loop.call_soon_threadsafe(self.loan.stand)
            time.sleep(1e-4)
            assert time.monotonic() < end
        return True

    def call(self, again: Callable[..., Any], *args: Any) -> Any:
        return self.portal.apply(lambda *_: ENDED, True, args, {}, again)


@pytest.fixture
def door() -> Iterator[Door]:
    before, door = current_world(), Door()
    use_world(door.world)
    yield door
    use_world(before)
    assert not door.loan._turn.locked()
    door.portal.leave()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_operation_that_completed_at_once_is_not_started_again(door: Door) -> None:
    asked: list[Any] = []

    def again(*given: Any) -> tuple[int]:
        asked.append((*given, asyncio._get_running_loop()))
        return (1,)

    assert door.call(again, 2, 3) is None
    assert asked == [(GROUP, (2, 3), {}, None)]


def test_an_operation_that_cannot_complete_at_once_takes_the_general_path(door: Door) -> None:
    for _ in range(2):
        assert door.call(lambda *_: None) == "the usual way"


def test_a_world_of_another_loop_is_not_asked(door: Door) -> None:
    door.world._loop = asyncio.new_event_loop()
    try:
        assert door.call(lambda *_: pytest.fail("asked")) == "the usual way"
    finally:
        door.world._loop.close()


def test_nothing_is_asked_where_nothing_is_initialised(door: Door) -> None:
    door.world.default = None
    assert door.call(lambda *_: pytest.fail("asked")) == "the usual way"


@pytest.mark.parametrize("named", ["group", "timeout"])
def test_with_a_group_or_a_timeout_of_its_own_it_goes_the_usual_way(
    door: Door, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """It is tried for the default group alone; what else is said by name it looks at itself."""
    monkeypatch.setattr(adapter, "portal", lambda: door.portal)
    options: dict[str, Any] = {"group": None, "timeout": None, "group_src": None}

    def call() -> tuple[Any, dict[str, Any]]:
        given: dict[str, Any] = {}
        asked = adapter.start(
            False,
            lambda *_, **kwargs: given.update(kwargs) or ENDED,
            (1,),
            again=lambda *args: looked.append(args) or (1,),
            **options,
        )
        return asked, given

    looked: list[Any] = []
    options["group_src"] = 3
    assert call() == (None, {})
    assert looked == [(GROUP, (1,), {"group_src": 3})]
    options[named] = 0
    asked, given = call()
    assert asked == "the usual way"
    assert given[named] == 0


def test_wrong_arguments_are_refused_and_the_loop_goes_on(door: Door) -> None:
    def again(*_: object) -> None:
        raise TypeError("op must be a ReduceOp")

    with pytest.raises(TypeError, match="ReduceOp"):
        door.call(again)
    assert door.portal.call(lambda: ENDED, True) == "the usual way"


def test_ctrl_c_waits_until_it_is_over(door: Door) -> None:
    steps = []

    def again(*_: object) -> tuple[int]:
        signal.raise_signal(signal.SIGINT)
        steps.append("to the end")
        return (1,)

    with pytest.raises(KeyboardInterrupt):
        door.call(again)
    assert steps == ["to the end"]


def test_ctrl_c_strikes_no_operation_between_the_two_ways(door: Door) -> None:
    """It has been put up by then: only what is under way can be cancelled, and the others told."""
    steps = []

    def again(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("put up")

    def begin() -> Any:
        steps.append("begun")
        return ENDED

    with pytest.raises(KeyboardInterrupt):
        door.portal.apply(begin, True, (), {}, again)
    assert steps == ["put up", "begun"]
