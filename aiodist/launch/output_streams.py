"""Move a rank's stdout or stderr to the screen and to files."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import IO

from aiodist.launch.failure import Tail
from aiodist.launch.outlets import Outlet
from aiodist.launch.output import LineSplitter, Piece

CHUNK = 1 << 16

DRAIN_LIMIT = 64
"""Chunks read at a rank's end. This is more than a pipe can hold, so it includes all that the rank
wrote. It is bounded in case a process that the rank started goes on writing."""

PATIENCE = 0.1
"""Seconds after which a terminal shows a line without its end: a prompt, a bar."""


class LineStream:
    """Put the lines of a rank's output to outlets, as its bytes come."""

    def __init__(self, rank: int, outlets: Sequence[Outlet], tail: Tail | None) -> None:
        """``tail`` keeps the end of what came."""
        self.rank = rank
        self.closed = False
        self.fd: int | None = None
        """What the loop has to watch; None where another part feeds the stream."""
        self._tail = tail
        self._outlets = outlets
        self._is_prompting = any(outlet.is_terminal for outlet in outlets)
        self._splitter = LineSplitter()
        self._fed_at = 0.0

    def feed(self, data: bytes) -> None:
        self._fed_at = time.monotonic()
        if self._tail is not None:
            self._tail.feed(data)
        self._put(self._splitter.feed(data))

    def drain(self) -> None:
        """Read all that waits; nothing does where another part feeds the stream."""

    def finish(self) -> None:
        """Show the last line even without its end: no more will come."""
        self.closed = True
        self._put(self._splitter.flush())

    def close(self) -> None:
        """Free the pipe; nothing does where another part feeds the stream."""

    def partial_due(self, now: float) -> float:
        """Return the seconds until `show_partial` shows something; inf if no text waits for it.

        Only on a terminal a user waits for a prompt; in a file, lines stay whole.
        """
        if not self._is_prompting or not self._splitter.holds_text:
            return math.inf
        return max(0.0, self._fed_at + PATIENCE - now)

    def show_partial(self, now: float) -> None:
        """Show the start of a line that has waited long enough for its end."""
        if self.partial_due(now) == 0.0:
            self._put(self._splitter.flush())

    def _put(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            for outlet in self._outlets:
                outlet.put(self, piece)


class OutputStream(LineStream):
    """Read a pipe without blocking, and put its lines to outlets."""

    def __init__(
        self, rank: int, pipe: IO[bytes], outlets: Sequence[Outlet], tail: Tail | None
    ) -> None:
        super().__init__(rank, outlets, tail)
        self.fd: int = pipe.fileno()
        self._pipe = pipe
        os.set_blocking(self.fd, False)

    def close(self) -> None:
        self._pipe.close()

    def drain(self) -> None:
        """Read all that is in the pipe."""
        for _ in range(DRAIN_LIMIT):
            if self.closed or not self.read():
                return

    def read(self) -> bool:
        """Read one chunk: each rank gets its turn. Returns whether there was any."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.finish()
            return False
        self.feed(data)
        return True
