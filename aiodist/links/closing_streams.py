"""How streams to a rank end: cut-off streams, and streams that are closed in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiodist.transport.base_transport import Connection

QUIET_SECONDS = 0.4
"""Seconds without data after which a rank counts as cut off whose silent stream has ended."""


class LossSuspicion:
    """A stream on which a rank has sent nothing has ended without a goodbye.

    If the rank leaves or has died, its last data still arrives on another stream, which then ends,
    too. ``on_cut_off()``, that the rank is cut off, is therefore called only when no data has come for
    a while.
    """

    def __init__(self, bytes_heard: Callable[[], int], on_cut_off: Callable[[], None]) -> None:
        """Start to watch. ``bytes_heard()`` returns how many bytes have come on all streams of the rank."""
        self._bytes_heard = bytes_heard
        self.on_cut_off = on_cut_off
        self._wait()

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._last_bytes = self._bytes_heard()
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._look)

    def _look(self) -> None:
        if self._bytes_heard() != self._last_bytes:
            self._wait()
        else:
            self.on_cut_off()


class ClosingStreams:
    """Streams that are being closed in order, so that their last data arrives."""

    def __init__(self, seconds: float = 1.0) -> None:
        """Create an empty set. ``seconds``: the time after which each stream is cut off."""
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def hang_up(self, *connections: Connection) -> None:
        """Close ``connections`` in the loop. A thread that drives the loop may call this, too."""
        for connection in connections:
            task = self._loop.create_task(self._close(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def over(self) -> None:
        """Return when all streams are closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut_short(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _close(self, connection: Connection) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await connection.close()
