"""The handle of an operation that completed in the call that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from aiodist.completion import T
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord, Record


class CompletedWork(Work[T]):
    """A `Work` that has ended without a result: most of its attributes are fixed for the class.

    Each small operation makes one, so it sets only what differs between two of them.
    """

    __slots__ = ()

    _done = True
    _error = None
    _value: T | None = None
    _context = None
    _driver = None
    _timer = None
    _unheard = None
    _retrieved = True
    _site = None
    _source = -1

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        record: Record | CompletedRecord,
        yields: bool = False,
    ) -> None:
        """``yields``: the first `await` yields to the loop, which has had no turn for long."""
        self._asked = False
        self._loop = loop
        self._record = record
        self._yields = yields
        self._outputs: list[Any] | None = None

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


class CompletedRecv(CompletedWork[T]):
    """A receive; ``source`` is the global rank that sent the message."""

    __slots__ = ("_source", "_value")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        record: Record | CompletedRecord,
        yields: bool,
        source: int,
        value: T,
    ) -> None:
        super().__init__(loop, record, yields)
        self._source = source
        self._value = value
