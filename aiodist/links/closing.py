"""How streams to a rank end: one that was cut off, and those that are closed in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiodist.transport.base import Connection

QUIET_SECONDS = 0.4
"""How long a stream may stand still before a rank counts as cut off whose other stream ended."""


class LossSuspicion:
    """One of two streams with a rank has ended, and the rank said no goodbye.

    If it leaves or has died, what it said last still arrives on the other, and then that ends, too.
    So ``verdict()``, that it is cut off, waits until nothing has come for a while.
    """

    def __init__(self, bytes_heard: Callable[[], int], verdict: Callable[[], None]) -> None:
        """``bytes_heard()``: how many bytes have come from the rank on all its streams."""
        self._bytes_heard = bytes_heard
        self._verdict = verdict
        self._wait()

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._heard = self._bytes_heard()
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._look)

    def _look(self) -> None:
        if self._bytes_heard() != self._heard:
            self._wait()
        else:
            self._verdict()


class ClosingStreams:
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
