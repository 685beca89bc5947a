"""Output of many ranks on one screen: whole lines, each with its rank, progress bars kept usable.

`LineSplitter` cuts a rank's bytes into pieces. `Screen` puts the pieces of all ranks on one
file descriptor. Neither reads anything: the supervisor feeds them.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from aiodist.observe.text_table import ranges

LINE_LIMIT = 1 << 20
"""Bytes of one line held back until its end; a longer line is shown in parts."""

WAIT_SECONDS = 1.0
"""How long a slow reader is waited for between two calls of what is to be called meanwhile."""

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Terminal colours of the ranks in turn; red is left to errors."""

BOLD = 1
"""The prefix of a line of several ranks."""

ERASE_LINE = b"\r\x1b[K"

_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""The end of a piece. A carriage return at the end of what has come may belong to a line feed."""


class Piece(NamedTuple):
    """Some text and what ended it.

    ``b"\\n"``: a line. ``b"\\r"``: a state of a progress bar. ``b""``: nothing yet.
    """

    text: bytes
    end: bytes


class LineSplitter:
    """Split a stream of bytes at line feeds and carriage returns. Any bytes are allowed.

    The pieces of lines do not depend on where the stream is cut. A piece that ends in a carriage return
    is complete with the byte after it.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest = b""

    @property
    def holds_text(self) -> bool:
        """Whether the start of a line waits for its end."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that are complete now."""
        # Invariant: the rest has no end in it, but for a carriage return that may be its last byte.
        looked_at = max(0, len(self._rest) - 1)
        data = self._rest + data
        pieces, start = [], 0
        for match in _END.finditer(data, looked_at):
            end = b"\r" if match.group() == b"\r" else b"\n"
            pieces.append(Piece(data[start : match.start()], end))
            start = match.end()
        self._rest = data[start:]
        if len(self._rest) >= self._limit:
            pieces += self.flush()
        return pieces

    def flush(self) -> list[Piece]:
        """Return the unfinished rest, as a piece without an end, or with a carriage return as its end."""
        rest, self._rest = self._rest, b""
        text = rest.removesuffix(b"\r")
        return [Piece(text, rest[len(text) :])] if rest else []


class Screen:
    """Write pieces of many sources to one file descriptor, which it does not own.

    If a source leaves a line open (a progress bar, a prompt), another source never continues it. On
    a terminal the other's line appears above and the open one is drawn again. In a file or pipe the
    open line is ended first.
    """

    def __init__(self, fd: int, *, tty: bool) -> None:
        self._fd = fd
        self.tty = tty
        self._out = fd
        """What is written to: the same, or the same terminal opened anew."""
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._while_waiting: Callable[[], bool] | None = None
        self._buffer = bytearray()
        self._owner: object = None
        self._shown = b""  # the owner's open line, with its prefix
        self._returned = False  # the open line ended in \r: the next piece replaces it

    @contextmanager
    def calling_while_waiting(self, act: Callable[[], bool]) -> Iterator[None]:
        """In this context, call ``act`` from time to time while a slow reader is waited for.

        It returns whether a reader that reads nothing is still waited for.
        """
        self._while_waiting = act
        if self.tty:
            # A terminal that is ready may have room for a byte only, and a write waits for more.
            # This mode would be that of all processes that share the descriptor.
            flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK
            with suppress(OSError):  # the terminal has no name here
                self._out = os.open(os.ttyname(self._fd), flags)
        try:
            yield
        finally:
            self._while_waiting = None
            if self._out != self._fd:
                os.close(self._out)
                self._out = self._fd

    def put(self, source: object, prefix: bytes, piece: Piece) -> None:
        """Add a piece of ``source``; `flush` writes it."""
        text, end = piece
        mine = self._owner is source
        again = b""
        if mine and not self._returned:
            head = b""  # goes on with the line it left open
        elif not text and end != b"\n":
            return  # a carriage return at the start of a line, as progress bars print
        elif mine and not text:
            head = b""  # only ends the bar
        else:
            head = prefix
            if self._owner is not None and not mine:
                self._buffer += ERASE_LINE if self.tty else b"\n"
                if self.tty and end == b"\n":
                    again = self._shown + (b"\r" if self._returned else b"")
        self._buffer += head + text + end + again
        if again:
            return
        if end == b"\n":
            self._owner = None
            return
        self._shown = (b"" if head or not mine else self._shown) + head + text
        self._owner, self._returned = source, end == b"\r"

    def end_line(self) -> None:
        """End the open line, if there is one, so that the next text starts at the left."""
        if self._owner is not None:
            self._buffer += b"\n"
            self._owner = None

    def flush(self) -> None:
        """Write all that was put. Waits for a slow reader.

        Raises OSError if it cannot be written: the reader has gone or is not waited for any more
        (BrokenPipeError), the terminal has hung up, or the disk is full.
        """
        data, self._buffer = memoryview(self._buffer), bytearray()
        while data:
            part = data
            if self._while_waiting is not None and not self._is_file:
                self._while_waiting()
                self._wait_for_room()
                # A pipe with any room has room for this much, so that the write does not wait.
                part = data[: select.PIPE_BUF]
            try:
                data = data[os.write(self._out, part) :]
            except BlockingIOError:  # another process that shares the descriptor set this mode
                self._wait_for_room()

    def discard(self) -> None:
        """Forget what was put: it cannot be written."""
        self._buffer.clear()

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self._out, select.POLLOUT)
        while not poll.poll(1000 * WAIT_SECONDS):
            if self._while_waiting is not None and not self._while_waiting():
                raise BrokenPipeError(errno.EPIPE, "nothing reads the output")


class Console:
    """The launcher's stdout and stderr as screens, which are one screen if both go to one place."""

    def __init__(self, stdout: int, stderr: int) -> None:
        """Ranks have colours on a terminal that knows them, unless NO_COLOR is set."""
        self.stdout = self.stderr = Screen(stdout, tty=os.isatty(stdout))
        if not os.path.sameopenfile(stdout, stderr):
            self.stderr = Screen(stderr, tty=os.isatty(stderr))
        self.screens = tuple(dict.fromkeys((self.stdout, self.stderr)))
        self._colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def prefix(self, ranks: Sequence[int], screen: Screen) -> bytes:
        """Return the prefix of a line that all of ``ranks`` have written on ``screen``."""
        label = ranges(ranks).replace(" ", "").encode()
        if not (self._colour and screen.tty):
            return b"[%b] " % label
        colour = COLOURS[ranks[0] % len(COLOURS)] if len(ranks) == 1 else BOLD
        return b"\x1b[%dm[%b]\x1b[0m " % (colour, label)

    def say(self, text: str) -> None:
        """Write the launcher's own text to stderr, on separate lines."""
        self.stderr.end_line()
        for line in text.splitlines():
            self.stderr.put(self, b"", Piece(line.encode(errors="replace"), b"\n"))
        self.flush()

    @contextmanager
    def calling_while_waiting(self, act: Callable[[], bool]) -> Iterator[None]:
        """In this context, call ``act`` while a slow reader is waited for, as `Screen` does."""
        with ExitStack() as stack:
            for screen in self.screens:
                stack.enter_context(screen.calling_while_waiting(act))
            yield

    def close(self) -> None:
        """End open lines, so that the shell's prompt starts at the left."""
        for screen in self.screens:
            screen.end_line()
        self.flush()

    def flush(self) -> None:
        """Write all that was put on either screen."""
        for screen in self.screens:
            screen.flush()

    def discard(self) -> None:
        """Forget what was put on either screen: it cannot be written."""
        for screen in self.screens:
            screen.discard()
