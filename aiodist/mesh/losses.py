"""The error for a lost rank, and the end of the streams to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiodist.errors import DistError, PeerLostError, name_of
from aiodist.mesh.peer import Card, Peer
from aiodist.transport.base import Connection

_GIVEN_UP = "is this rank, and was given up by the others"

LEFT = "has left: it destroyed its process group or ended"
"""Of a rank that said so. As below, what follows its name."""

QUIET_SECONDS = 0.4
"""How long a stream may stand still before a rank counts as cut off whose other stream ended."""


def peer_lost(card: Card, why: str, noticed_by: int = -1, last: str = "") -> PeerLostError:
    """``card``'s rank is gone; ``why`` continues a sentence that begins with it."""
    return PeerLostError(
        f"{card} {why}",
        rank=card.rank,
        host=card.host,
        pid=card.pid,
        last=last,
        noticed_by=noticed_by,
    )


def outcast(card: Card, why: str, noticed_by: int, last: str) -> PeerLostError:
    """``card``'s rank is this one, and lost to the others; ``why``: a sentence of theirs."""
    return peer_lost(card, f"{_GIVEN_UP}: {why}", noticed_by, last)


def own_loss(error: DistError, rank: int) -> DistError:
    """``error`` as it is raised on ``rank``, which may be the very one that it says is lost."""
    if not isinstance(error, PeerLostError) or error.rank != rank or _GIVEN_UP in error.message:
        return error
    who = name_of(rank, error.host, error.pid)
    what = error.message.removeprefix(f"{who} ")
    if what == error.message:
        what = f"is lost, they say: {error.message}"
    return PeerLostError(f"{who} {_GIVEN_UP}: it {what}", **error.fields)


def without_frames(error: BaseException | None) -> BaseException | None:
    """``error``, whose frames hold buffers that were being read: a group keeps it for long."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


class Doubt:
    """One of two streams with a rank has ended, and the rank said no goodbye.

    If it leaves or has died, what it said last still arrives on the other, and then that ends, too.
    So ``verdict()``, that it is cut off, waits until nothing has come for a while.
    """

    def __init__(self, peer: Peer, verdict: Callable[[], None]) -> None:
        self._peer = peer
        self._verdict = verdict
        self._wait()

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._heard = self._peer.bytes_heard
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._look)

    def _look(self) -> None:
        if self._peer.bytes_heard != self._heard:
            self._wait()
        else:
            self._verdict()


class Farewells:
    """Streams that are being closed in order, so that what was said last arrives."""

    def __init__(self, seconds: float = 1.0) -> None:
        """``seconds``: after which each is cut off."""
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def hang_up(self, *connections: Connection) -> None:
        for connection in connections:
            task = asyncio.get_running_loop().create_task(self._close(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def over(self) -> None:
        """Return when all are closed. Cancelled, it cuts them off."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            self.cut_short()
            raise

    def cut_short(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _close(self, connection: Connection) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await connection.close()
