"""Connections whose other end has yet to prove who it is: not many, and not for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, Protocol, TypeVar

from aiodist.errors import DistNetworkError, HandshakeError, ProtocolError
from aiodist.turning_timer import TurningTimer

log = logging.getLogger("aiodist")

HANDSHAKE_SECONDS = 10.0
"""For a connection that has said nothing valid yet."""

GREETED_SECONDS = 3600.0
"""For one whose first words were right. It may be a rank that began to connect and now computes. If
its connection ended before its proof is read, the rank would take this one for lost.
"""

SPARE = 64
"""Connections of strangers that a listener bears at once, beside those that ranks may make."""

UNKNOWN_SIZE = 1024
"""Ranks to reckon with while the size of the job is not known."""

MAX_LOGGED = 16
"""Strangers that a listener logs, one line each, so that repeated connections do not fill the disk.
"""


class Abortable(Protocol):
    """What is turned away."""

    def abort(self, error: BaseException) -> None: ...


L = TypeVar("L", bound=Abortable)


class PendingHandshakes(Generic[L]):
    """The connections that one listener has accepted and that have not proven themselves.

    Each has `HANDSHAKE_SECONDS`, and `GREETED_SECONDS` from its first words on. If there are too
    many, the oldest is dropped. It is hardly a rank of the job, since those take milliseconds.
    """

    def __init__(self, who: str, size: int) -> None:
        """``who``: text for the listener. ``size``: as of `expect`."""
        self.who = who
        self.expect(size)
        self._waiting: dict[L, tuple[str, TurningTimer]] = {}  # by age, with the name
        self._greeted: set[L] = set()
        self._logged = 0
        self._crowded = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[L]:
        return iter(list(self._waiting))

    def expect(self, size: int) -> None:
        """Bear the connections of a job of ``size`` ranks, which may all come at once.

        Below 0: the size is not known yet.
        """
        self.limit = SPARE + 2 * (size if size >= 0 else UNKNOWN_SIZE)

    def admit(self, link: L, name: str) -> None:
        """``link`` was accepted; ``name`` is where it comes from."""
        self._limit_time(link, name, HANDSHAKE_SECONDS)
        if len(self._waiting) > self.limit:
            oldest = next(iter(self._waiting))
            self._forget(oldest)
            if not self._crowded:
                self._crowded = True
                log.warning(
                    "%s is besieged: more than %d connections at once that have not proven to be "
                    "of this job. The oldest are dropped (see who can reach this host, and name "
                    "another interface in AIODIST_SOCKET_IFNAME)",
                    self.who,
                    self.limit,
                )
            oldest.abort(DistNetworkError("too many connections at once without a proof"))

    def greeted(self, link: L, name: str) -> None:
        """The first words of ``link`` were right; its proof may come late."""
        waiting = self._waiting.get(link)
        if waiting is not None:
            waiting[1].cancel()
            self._greeted.add(link)
            self._limit_time(link, name, GREETED_SECONDS)

    def _limit_time(self, link: L, name: str, seconds: float) -> None:
        late = DistNetworkError(f"{name} did not finish the handshake in time")
        self._waiting[link] = name, TurningTimer(self._loop, seconds, partial(link.abort, late))

    def proven(self, link: L) -> None:
        """``link`` is a rank of this job."""
        self._forget(link)

    def _forget(self, link: L) -> tuple[str | None, bool]:
        """Return the name of ``link`` if it was pending, and whether its first words were right."""
        name, timer = self._waiting.pop(link, (None, None))
        if timer is None:
            return None, False
        timer.cancel()
        was_greeted = link in self._greeted
        self._greeted.discard(link)
        return name, was_greeted

    def rejected(self, link: L, error: BaseException | None) -> None:
        """``link`` has ended; if it was a stranger's, say so in the log."""
        name, was_greeted = self._forget(link)
        if name is None:
            return
        if was_greeted and not isinstance(error, (HandshakeError, ProtocolError)):
            return  # a rank that gave up while this one was busy, and connects anew
        self._logged += 1
        if self._logged <= MAX_LOGGED:
            last = "; no more of them will be logged" if self._logged == MAX_LOGGED else ""
            why = str(error or "it closed the connection during the handshake")
            if name not in why:
                why = f"{name}: {why}"
            log.warning("%s turned a stranger away: %s%s", self.who, why, last)

    def close(self, hang_up: Callable[[L], None]) -> None:
        """Drop all pending connections."""
        for link, (_, timer) in list(self._waiting.items()):
            timer.cancel()
            hang_up(link)
        self._waiting.clear()
        self._greeted.clear()
