"""The handle of an operation that completed in the call that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from aiodist.completion import T
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord, Record


class CompletedWork(Work[T]):
    """A `Work` that has ended well: most of its attributes are fixed for the class.

    Each small operation makes one, so it sets only what differs between two of them.
    """

    __slots__ = ()

    _done = True
    _context = None
    _driver = None
    _deadline_in = None
    _traceback = None
    _unheard = None
    _retrieved = True
    _site = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        record: Record | CompletedRecord,
        yields: bool = False,
        value: T | None = None,
        source: int = -1,
        hand_back: Callable[[], None] | None = None,
    ) -> None:
        """``yields``: the first `await` yields to the loop, which has had no turn for long.

        ``value``: the result. ``source``: the global rank that sent the message, of a receive.
        ``hand_back``: gives that message to the next receive, if a task that was made of this is
        cancelled before its first step.
        """
        self._asked = False
        self._loop = loop
        self._record = record
        self._yields = yields
        self._value = value
        self._source = source
        self._outputs: list[Any] | None = None
        self._error = None
        self._unread = hand_back

    @property
    def _callbacks(self) -> list[Callable[[], None]]:  # type: ignore[override]
        return []

    def _mark_retrieved(self) -> None:
        self._asked = True

    def __await__(self) -> Generator[Any, None, T]:
        if self._yields or self._error is not None:
            return (yield from super().__await__())
        self._asked = True
        self._unread = None
        return self._value  # type: ignore[return-value]  # None where there is no result
