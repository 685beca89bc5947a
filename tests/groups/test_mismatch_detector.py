"""When a collective counts as waiting, and its ranks are told."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

from aiodist.groups.mismatch_detector import LONGEST_SECONDS, MismatchDetector
from aiodist.p2p.spin_policy import SUSPICION_SECONDS


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose one timer goes off when the test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Timer, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Timer:
        timer = Timer()
        self.timers.append((seconds, timer, lambda: callback(*args)))
        return timer

    def pass_time(self) -> float:
        """Let the timer go off. Returns its seconds."""
        ((seconds, timer, callback),) = self.timers
        self.timers.clear()
        assert not timer.cancelled
        callback()
        return seconds


class Collective:
    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.told = 0

    def announce_awaited(self) -> None:
        self.told += 1


class Group:
    def __init__(self) -> None:
        self.under_way: list[Collective] = []

    def first_under_way(self) -> Collective | None:
        return self.under_way[0] if self.under_way else None


def detector() -> tuple[MismatchDetector, Group, Loop]:
    group, loop = Group(), Loop()
    return MismatchDetector(cast(asyncio.AbstractEventLoop, loop), group), group, loop


def test_a_collective_that_is_the_first_at_two_looks_tells() -> None:
    looking, group, loop = detector()
    first, second = Collective(0), Collective(1)
    group.under_way += [first, second]

    def told() -> list[int]:
        return [first.told, second.told]

    looking.started()
    looking.started()  # one timer serves all
    assert loop.pass_time() == SUSPICION_SECONDS
    assert told() == [0, 0]
    assert loop.pass_time() == SUSPICION_SECONDS
    assert told() == [1, 0]
    group.under_way.remove(first)
    loop.pass_time()
    assert told() == [1, 0]
    assert loop.pass_time() == SUSPICION_SECONDS
    assert told() == [1, 1]


def test_intervals_between_looks_grow_up_to_a_limit() -> None:
    looking, group, loop = detector()
    group.under_way.append(Collective(0))
    looking.started()
    seconds = [loop.pass_time() for _ in range(12)]
    assert seconds == sorted(seconds)
    assert seconds[2] == 2 * SUSPICION_SECONDS
    assert seconds[-1] == LONGEST_SECONDS


def test_no_timer_is_set_while_nothing_is_under_way_or_the_group_is_closed() -> None:
    looking, group, loop = detector()
    looking.started()
    loop.pass_time()
    assert not loop.timers
    group.under_way.append(Collective(0))
    looking.started()
    ((_, timer, _),) = loop.timers
    looking.close()
    looking.close()
    assert timer.cancelled


def test_the_timer_does_not_keep_the_detector_alive() -> None:
    looking, _, loop = detector()
    looking.started()
    kept = weakref.ref(looking)
    del looking
    gc.collect()
    assert kept() is None
    loop.pass_time()
    assert not loop.timers
