"""The handles of operations that completed in the call that started them."""

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
    _error: BaseException | None = None
    _context = None
    _driver = None
    _deadline_in = None
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
    ) -> None:
        """``yields``: the first `await` yields to the loop, which has had no turn for long.

        ``value``: the result. ``source``: the global rank that sent the message, of a receive.
        """
        self._asked = False
        self._loop = loop
        self._record = record
        self._yields = yields
        self._value = value
        self._source = source
        self._outputs: list[Any] | None = None
        self._unread = None

    @property
    def _callbacks(self) -> list[Callable[[], None]]:  # type: ignore[override]
        return []

    def _heard(self) -> None:
        self._asked = True

    def __await__(self) -> Generator[Any, None, T]:
        self._asked = True
        if self._yields:
            self._yields = False
            yield
        return self._value  # type: ignore[return-value]  # None where there is no result


class CompletedReceive(CompletedWork[T]):
    """A receive that has ended well, and that no caller has got the result of yet.

    A task may be made of it and be cancelled before its first step. Then the message goes to the next
    receive, and the work counts as cancelled.
    """

    __slots__ = ("_error",)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        record: Record | CompletedRecord,
        yields: bool,
        value: T,
        source: int,
        hand_back: Callable[[], None],
    ) -> None:
        """As for `CompletedWork`. ``hand_back``: gives the message to the next receive."""
        # Not by super(): each small receive makes one.
        self._asked = False
        self._loop = loop
        self._record = record
        self._yields = yields
        self._value = value
        self._source = source
        self._outputs = None
        self._error = None
        self._unread = hand_back

    def __await__(self) -> Generator[Any, None, T]:
        if self._yields or self._error is not None:
            return (yield from Work.__await__(self))
        self._asked = True
        self._unread = None
        return self._value  # type: ignore[return-value]  # None where there is no result
