"""End the operations of a group that take too long, by one timer for all of them."""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import Any

from aiodist.groups.work import Work

_MANY = 64
"""How many different timeouts are kept before those without operations are dropped."""


class OperationDeadlines:
    """The operations under way that have a timeout, and a timer for the first that is to end.

    Most operations end long before, so a timer of the loop for each would be made and cancelled for
    nothing. Operations of one timeout are due in the order in which they began, and most of a
    group have one and the same.
    """

    __slots__ = ("__weakref__", "_due", "_first", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[float, dict[Work[Any], float]] = {}
        """When each operation is due, by its timeout. What has ended leaves by itself."""
        self._first = math.inf
        """When the timer goes off; no operation is due before."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Work[Any], seconds: float | None) -> None:
        """Let ``work`` fail unless it ends within ``seconds``; None is no limit."""
        if work._done or seconds is None or seconds == math.inf:
            return
        due = self._due.get(seconds)
        if due is None:
            if len(self._due) >= _MANY:
                self._due = {timeout: due for timeout, due in self._due.items() if due}
            due = self._due[seconds] = {}
        work._deadline_in, due[work] = due, (end := self._loop.time() + seconds)
        if end < self._first:
            self._set(end)

    def close(self) -> None:
        """Let nothing fail any more: all operations have ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._first, self._timer = {}, math.inf, None

    def _set(self, end: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._first, self._timer = end, self._loop.call_at(end, _expire, weakref.ref(self))

    def _expire(self) -> None:
        """End what is due, and set the timer for the next one."""
        self._first, self._timer, now = math.inf, None, self._loop.time()
        for seconds, due in list(self._due.items()):
            while due:
                work, end = next(iter(due.items()))
                if end > now:
                    break
                del due[work]
                work._expire(seconds)
        ends = [next(iter(due.values())) for due in self._due.values() if due]
        if ends and min(ends) < self._first:
            self._set(min(ends))


def _expire(deadlines: weakref.ref[OperationDeadlines]) -> None:
    """Call its namesake, of a group that the timer does not keep alive."""
    if (own := deadlines()) is not None:
        own._expire()
