"""Connections whose other end has yet to prove who it is: not many, and not for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from aiodist.errors import DistNetworkError

log = logging.getLogger("aiodist")

HANDSHAKE_SECONDS = 10.0

SPARE = 64
"""Connections of strangers that a listener bears at once, beside those that ranks may make."""

MAX_LOGGED = 16
"""Strangers that a listener logs, one line each, so that repeated connections do not fill the disk.
"""


class Abortable(Protocol):
    """What is turned away."""

    def abort(self, error: BaseException) -> None: ...


L = TypeVar("L", bound=Abortable)


class PendingHandshakes(Generic[L]):
    """The connections that one listener has accepted and that have not proven themselves.

    Each has `HANDSHAKE_SECONDS`. If there are too many, the oldest is dropped. It is no rank of the
    job, since those take milliseconds.
    """

    def __init__(self, who: str, size: int) -> None:
        """``who``: text for the listener. ``size``: of the job, whose ranks may all come at once."""
        self._who = who
        self._limit = SPARE + 2 * size
        self._waiting: dict[L, asyncio.TimerHandle] = {}
        self._logged = 0
        self._crowded = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[L]:
        return iter(list(self._waiting))

    def admit(self, link: L, name: str) -> None:
        """``link`` was accepted; ``name`` is where it comes from."""
        late = DistNetworkError(f"{name} did not finish the handshake in time")
        self._waiting[link] = self._loop.call_later(HANDSHAKE_SECONDS, link.abort, late)
        if len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).cancel()
            if not self._crowded:
                self._crowded = True
                log.warning(
                    "%s is besieged: more than %d connections at once that have not proven to be "
                    "of this job. The oldest are dropped (see who can reach this host, and name "
                    "another interface in AIODIST_SOCKET_IFNAME)",
                    self._who,
                    self._limit,
                )
            oldest.abort(DistNetworkError("too many connections at once without a proof"))

    def proven(self, link: L) -> None:
        """``link`` is a rank of this job."""
        timer = self._waiting.pop(link, None)
        if timer is not None:
            timer.cancel()

    def turned_away(self, link: L, error: BaseException | None) -> None:
        """``link`` has ended; if it was a stranger's, say so in the log."""
        timer = self._waiting.pop(link, None)
        if timer is None:
            return
        timer.cancel()
        self._logged += 1
        if self._logged <= MAX_LOGGED:
            last = "; no more of them will be logged" if self._logged == MAX_LOGGED else ""
            why = error or "it closed the connection during the handshake"
            log.warning("%s turned a stranger away: %s%s", self._who, why, last)

    def close(self, hang_up: Callable[[L], None]) -> None:
        """Drop all pending connections."""
        for link, timer in list(self._waiting.items()):
            timer.cancel()
            hang_up(link)
        self._waiting.clear()
