"""Operations under way fail by their own timeouts, with one timer for all of a group."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.operation_deadlines import OperationDeadlines
from aiodist.testing.in_process import run_ranks


class _Timer:
    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """A loop whose clock stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[_Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> _Timer:
        self.timers.append(timer := _Timer(when, lambda: call(*args)))
        return timer

    @property
    def waiting(self) -> list[float]:
        """When timers go off."""
        return [timer.when for timer in self.timers if not timer.is_cancelled]

    def move_to(self, now: float) -> None:
        """Let timers go off that are due until ``now``."""
        self.now = now
        due = [timer for timer in self.timers if timer.when <= now]
        self.timers = [timer for timer in self.timers if timer.when > now]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()


class _Operation:
    """What `OperationDeadlines` uses of a `Work`."""

    def __init__(self) -> None:
        self._done = False
        self._deadline_in: dict[Any, float] | None = None
        self.expired: list[float] = []

    def _expire(self, seconds: float) -> None:
        self.expired.append(seconds)

    def end(self) -> None:
        self._done = True
        if self._deadline_in is not None:
            self._deadline_in.pop(self)


def _add(deadlines: OperationDeadlines, seconds: float | None) -> _Operation:
    operation: Any = _Operation()
    deadlines.add(operation, seconds)
    own: _Operation = operation
    return own


def _made() -> tuple[Any, OperationDeadlines]:
    loop: Any = _Loop()
    return loop, OperationDeadlines(loop)


def test_operations_in_a_row_set_one_timer() -> None:
    loop, deadlines = _made()
    for _ in range(100):
        _add(deadlines, 60).end()
        loop.now += 0.1
    assert len(loop.timers) == 1
    loop.move_to(160)
    assert loop.waiting == []
    _add(deadlines, 60)
    assert loop.waiting == [220]


def test_each_operation_fails_when_its_own_time_is_up() -> None:
    loop, deadlines = _made()
    operations = {seconds: _add(deadlines, seconds) for seconds in (30, 10, 20, math.inf, None)}
    later = [_add(deadlines, 10)]
    loop.now += 1
    later.append(_add(deadlines, 10))
    assert loop.waiting == [110]
    loop.move_to(109.9)
    assert not any(operation.expired for operation in operations.values())
    loop.move_to(110)
    assert operations[10].expired == later[0].expired == [10]
    assert not later[1].expired
    operations[20].end()
    loop.move_to(130)
    assert later[1].expired == [10]
    assert not operations[20].expired
    assert operations[30].expired == [30]
    assert not operations[None].expired
    assert not operations[math.inf].expired
    assert loop.waiting == []


def test_an_operation_that_an_expiring_one_starts_gets_its_own_timer() -> None:
    loop, deadlines = _made()
    first = _add(deadlines, 10)
    started: list[_Operation] = []
    first._expire = lambda seconds: started.append(_add(deadlines, 5))  # type: ignore[method-assign]
    longer = _add(deadlines, 30)
    loop.move_to(110)
    assert loop.waiting == [115]
    loop.move_to(115)
    assert started[0].expired == [5]
    assert loop.waiting == [130]
    loop.move_to(130)
    assert longer.expired == [30]


def test_an_operation_that_has_ended_has_no_deadline() -> None:
    loop, deadlines = _made()
    operation: Any = _Operation()
    operation.end()
    deadlines.add(operation, 10)
    assert loop.timers == []


def test_timeouts_that_no_operation_has_any_more_are_forgotten() -> None:
    _, deadlines = _made()
    kept = _add(deadlines, 1000)
    ended = []
    for number in range(1000):
        operation = _add(deadlines, 1 + number / 1000)
        assert operation._deadline_in is not None
        ended.append(weakref.ref(operation))
        operation.end()
        del operation
    assert all(operation() is None for operation in ended)
    assert len(deadlines._due) <= 65
    assert kept._deadline_in == {kept: 1100}


def test_a_timer_does_not_keep_a_group_alive_and_ends_with_it() -> None:
    loop, deadlines = _made()
    operation = _add(deadlines, 10)
    gone = weakref.ref(deadlines)
    del deadlines
    assert gone() is None
    loop.move_to(200)
    assert not operation.expired

    loop, deadlines = _made()
    operation = _add(deadlines, 10)
    deadlines.close()
    assert loop.waiting == []


async def test_receives_of_one_rank_fail_by_their_own_timeouts() -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            await dist.barrier()
            await dist.send(np.ones(1), 0, tag=9)
            return
        works = {
            seconds: dist.irecv(np.zeros(1), 1, tag=tag, timeout=seconds)
            for tag, seconds in enumerate((0.3, 0.1, 0.2))
        }
        unlimited = dist.irecv(np.zeros(1), 1, tag=9)
        for seconds, work in works.items():
            with pytest.raises(dist.CollectiveTimeoutError, match=f"{seconds} s"):
                await work
        await dist.barrier()
        assert await unlimited == 1

    await run_ranks(2, main, timeout=20)
