"""Find ranks that wait for each other in different collectives.

Each message and each slot of a collective carries its fingerprint, which its reader compares. But two ranks
may each wait for the other and send nothing: both may take themselves for the root of a reduce. Or one runs
in shared memory and the other over streams. So a rank that has waited for a moment tells each rank that it
waits for which collective it is in. In shared memory it tells its neighbours
(`CollectiveContext.announce_awaited` says why).

Why this finds every disagreement of ranks that wait for messages: take the first collective that does
not end. It would end if all ranks called it alike. So among the ranks that wait in it, one waits for a rank
that called, or will call, another collective in its place. Later collectives of the group may wait for this
one. So the first one under way is the only one that has to tell.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Protocol

from aiodist.p2p.spin_policy import SUSPICION_SECONDS

if TYPE_CHECKING:
    from aiodist.groups.contexts import CollectiveContext

LONGEST_SECONDS = 1.0
"""How often a rank that waits for long looks whether it waits for other ranks by now."""


class CollectivesUnderWay(Protocol):
    """The group, as the detector sees it; `groups.group_engine.GroupEngine` is one."""

    def first_under_way(self) -> CollectiveContext | None:
        """Return the collective of the lowest number that has not ended here; None where all have."""


class MismatchDetector:
    """Looks at intervals whether the first collective under way has waited for a moment.

    One timer of a group serves all its collectives, and none is set while none is under way. A collective
    counts as waiting if it was the first one at two looks.
    """

    __slots__ = ("__weakref__", "_group", "_loop", "_seconds", "_seen", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, group: CollectivesUnderWay) -> None:
        self._loop = loop
        self._group = group
        self._timer: asyncio.TimerHandle | None = None
        self._seen = -1
        """The number of the first collective at the last look."""
        self._seconds = SUSPICION_SECONDS

    def started(self) -> None:
        """Note that a collective is under way."""
        if self._timer is None:
            self._set(SUSPICION_SECONDS)

    def close(self) -> None:
        """Stop looking: the group is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = self._loop.call_later(seconds, _look, weakref.ref(self))

    def _look(self) -> None:
        self._timer = None
        first = self._group.first_under_way()
        if first is None:
            return
        if first.sequence != self._seen:
            self._seen = first.sequence
            self._set(SUSPICION_SECONDS)
            return
        # Before anything is told: a collective that fails by it may be followed by the next one.
        self._set(min(2 * self._seconds, LONGEST_SECONDS))
        first.announce_awaited()


def _look(detector: weakref.ref[MismatchDetector]) -> None:
    """Call its namesake, of a group that the timer does not keep alive."""
    if (own := detector()) is not None:
        own._look()
