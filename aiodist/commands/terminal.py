"""What a terminal can do that a file cannot: colours, drawing in place, single keys."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

BOLD, RED, GREEN, YELLOW = 1, 31, 32, 33

_HOME, _CLEAR_BELOW, _CLEAR_SCREEN = "\x1b[H", "\x1b[J", "\x1b[2J"
_CLEAR_RIGHT = "\x1b[K"


def has_colours(stream: TextIO) -> bool:
    """Return whether text for ``stream`` may have colours: a terminal, and no NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, *codes: int, on: bool) -> str:
    """Return ``text`` in the colours ``codes``, or as it is where ``on`` is False."""
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if on and codes else text


class Frames:
    """Show one text after the other: in place on a terminal, below each other elsewhere.

    On a terminal that is typed into, ``wait`` takes single keys. A context manager, which gives the
    terminal back as it was, also where a signal ends the process.
    """

    def __init__(self, output: TextIO) -> None:
        self.in_place = output.isatty() and os.environ.get("TERM") != "dumb"
        self._output = output
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._drawn = False

    def __enter__(self) -> Frames:
        if self.in_place and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                self._handlers[number] = signal.signal(number, _end)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None for a file, which has no limit."""
        return shutil.get_terminal_size().columns if self.in_place else None

    @property
    def height(self) -> int | None:
        """Lines that fit the terminal; None for a file, which has no limit."""
        return shutil.get_terminal_size().lines - 1 if self.in_place else None

    def draw(self, lines: Sequence[str]) -> None:
        """Show ``lines`` in place of those before. What does not fit the height is left out."""
        if not self.in_place:
            self._output.write("".join(f"{line}\n" for line in [*([""] * self._drawn), *lines]))
        else:
            shown = "".join(f"{line}{_CLEAR_RIGHT}\n" for line in lines[: self.height])
            start = _HOME if self._drawn else _CLEAR_SCREEN + _HOME
            self._output.write(start + shown + _CLEAR_BELOW)
        self._drawn = True
        self._output.flush()

    def print(self, line: str) -> None:
        """Write a line, which stays."""
        self._output.write(f"{line}\n")
        self._output.flush()

    def wait(self, seconds: float) -> bool:
        """Wait so long; return at once, and True, if the key q was pressed."""
        if self._before is None:
            time.sleep(seconds)
            return False
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([sys.stdin], [], [], left)
            if ready and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
                return True
        return False


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
