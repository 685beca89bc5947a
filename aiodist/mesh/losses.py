"""The error for a lost rank, and the end of the streams to it."""

from __future__ import annotations

import asyncio
import contextlib

from aiodist.errors import PeerLostError
from aiodist.mesh.peer import Card
from aiodist.transport.base import Connection


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


def without_frames(error: BaseException | None) -> BaseException | None:
    """``error``, whose frames hold buffers that were being read: a group keeps it for long."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


class Farewells:
    """Streams that are being closed in order, so that what was said last arrives."""

    def __init__(self, seconds: float = 1.0) -> None:
        """``seconds``: after which each is cut off."""
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def hang_up(self, connection: Connection) -> None:
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
