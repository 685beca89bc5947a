"""Which ranks come and go, as events for any number of readers."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

from aiodist.errors import PeerLostError
from aiodist.unpicklable import Unpicklable


@dataclass(frozen=True)
class MembershipEvent:
    """A rank is gone, or a process has taken the place of a lost one.

    ``kind``: "lost" of a rank that died or cannot be reached, "left" of one that said goodbye,
    "joined" of one that `aiodist.grow` took in. ``rank``: its global rank. ``error``: what operations
    with it raise; None where it joined.
    """

    kind: Literal["lost", "left", "joined"]
    rank: int
    error: PeerLostError | None = None


class MembershipEvents(Unpicklable):
    """The events from the moment it was made: ``async for event in membership``.

    It is exhausted after the process group was destroyed. Several tasks may iterate: each event goes
    to one of them.
    """

    def __init__(self) -> None:
        """Not for users: `aiodist.membership` makes one."""
        self._events: deque[MembershipEvent] = deque()
        self._changed = asyncio.Event()
        self._is_over = False

    def __aiter__(self) -> MembershipEvents:
        return self

    async def __anext__(self) -> MembershipEvent:
        """Wait for the next event. Cancelled, it loses none."""
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    def put(self, event: MembershipEvent) -> None:
        """Add ``event``."""
        self._events.append(event)
        self._changed.set()

    def end(self) -> None:
        """End the iteration after the events that have come."""
        self._is_over = True
        self._changed.set()


class Membership:
    """A world's readers of events. A reader that is dropped hears no more."""

    def __init__(self) -> None:
        self._readers: WeakSet[MembershipEvents] = WeakSet()

    def read(self) -> MembershipEvents:
        """Return a new reader: it gets what comes from now on."""
        reader = MembershipEvents()
        self._readers.add(reader)
        return reader

    def lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        """Tell all readers that ``rank`` is gone."""
        self._emit(MembershipEvent("left" if departed else "lost", rank, error))

    def joined(self, rank: int) -> None:
        """Tell all readers that a process took the place of ``rank``."""
        self._emit(MembershipEvent("joined", rank))

    def end(self) -> None:
        """End all readers."""
        for reader in list(self._readers):
            reader.end()

    def _emit(self, event: MembershipEvent) -> None:
        for reader in list(self._readers):
            reader.put(event)
