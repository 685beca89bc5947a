"""Where a rank's lines go: to a screen, to a file of its own, or folded with those of other ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from aiodist.errors import InvalidUsageError
from aiodist.launch.output import Console, Piece, Screen

FOLD_SECONDS = 0.25
"""How long a line waits for the same line of other ranks."""

_MOST_WAITING = 512
"""Lines that wait at a time; beyond that the oldest is shown."""


class Outlet(Protocol):
    """Takes the pieces of one rank's stream."""

    @property
    def is_terminal(self) -> bool:
        """Whether a user waits for prompts there."""

    def put(self, source: object, piece: Piece) -> None:
        """Take a piece of the stream ``source``."""


@dataclass(frozen=True)
class ScreenOutlet:
    """Put the pieces on a screen, with a prefix before each line."""

    screen: Screen
    prefix: bytes

    @property
    def is_terminal(self) -> bool:
        return self.screen.tty

    def put(self, source: object, piece: Piece) -> None:
        self.screen.put(source, self.prefix, piece)


class LogFile:
    """Write the pieces to a file. After an error nothing more is written, and ``tell`` is called."""

    is_terminal = False

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Open the file, which loses what it had. Raises OSError."""
        self._path = path
        self._tell = tell
        self._file = path.open("wb")
        self._owner: object = None
        """The stream that has left a line open."""
        self._has_failed = False

    def put(self, source: object, piece: Piece) -> None:
        if self._owner is not source and not piece.text and piece.end == b"\r":
            return  # Progress bars print a carriage return at the start of a line.
        # An open line of another stream is ended first, such as that of a process that was replaced.
        before = b"" if self._owner in (None, source) else b"\n"
        self._owner = None if piece.end == b"\n" else source
        self._try(lambda: self._file.write(before + piece.text + piece.end))

    def flush(self) -> None:
        self._try(self._file.flush)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # the flush before has told

    def _try(self, act: Callable[[], object]) -> None:
        if self._has_failed:
            return
        try:
            act()
        except OSError as error:
            self._has_failed = True
            self._tell(f"aiodist: {self._path} does not get any more lines: {error}")


class _Line:
    """A line that waits. ``before``: the line that its first rank wrote before it."""

    def __init__(self, text: bytes, rank: int, before: _Line | None) -> None:
        self.text, self.ranks, self.before = text, [rank], before
        self.born = time.monotonic()


class Folding:
    """Show a line that several ranks write within `FOLD_SECONDS` once, with all of their numbers.

    The lines of each rank stay in their order: a rank joins only lines after its last one. A line
    that no other rank has goes directly after the rank's last one, so that later lines can be
    joined.
    """

    def __init__(
        self, screen: Screen, prefix: Callable[[Sequence[int]], bytes], n_ranks: int
    ) -> None:
        """``n_ranks``: how many ranks write; a line that all have written is shown at once."""
        self.screen = screen
        self._prefix = prefix
        self._n_ranks = n_ranks
        self._waiting: list[_Line] = []
        self._last: dict[int, _Line] = {}
        self._open: set[object] = set()  # streams that have left a line open

    def put(self, source: object, rank: int, piece: Piece) -> None:
        """Take a piece; progress bars and prompts are shown at once."""
        if piece.end != b"\n" or source in self._open:
            self.release()
            self.screen.put(source, self._prefix([rank]), piece)
            (self._open.discard if piece.end == b"\n" else self._open.add)(source)
            return
        last = self._last.get(rank)
        place = self._waiting.index(last) + 1 if last in self._waiting else 0
        same = [line for line in self._waiting[place:] if line.text == piece.text]
        if same:
            line = same[0]
            line.ranks.append(rank)
        else:
            line = _Line(piece.text, rank, last)
            while place < len(self._waiting) and self._waiting[place].before is last:
                place += 1  # what other ranks have written there instead
            self._waiting.insert(place, line)
        self._last[rank] = line
        if len(line.ranks) == self._n_ranks:
            self._show(self._waiting.index(line) + 1)
        elif len(self._waiting) > _MOST_WAITING:
            self._show(1)

    def due(self, now: float) -> float:
        """Return the seconds until a line has waited long enough; inf if none waits."""
        born = min((line.born for line in self._waiting), default=math.inf)
        return max(0.0, born + FOLD_SECONDS - now)

    def release(self, now: float = math.inf) -> None:
        """Show the lines that have waited long enough at ``now``; all of them without it."""
        late = [n for n, line in enumerate(self._waiting) if line.born + FOLD_SECONDS <= now]
        self._show(late[-1] + 1 if late else 0)

    def _show(self, count: int) -> None:
        """Show the first ``count`` lines."""
        shown, self._waiting = self._waiting[:count], self._waiting[count:]
        for line in shown:
            line.before = None  # else every line would be kept
            self.screen.put(line, self._prefix(sorted(line.ranks)), Piece(line.text, b"\n"))


@dataclass(frozen=True)
class FoldingOutlet:
    """One rank's way into a `Folding`."""

    folding: Folding
    rank: int

    @property
    def is_terminal(self) -> bool:
        return self.folding.screen.tty

    def put(self, source: object, piece: Piece) -> None:
        self.folding.put(source, self.rank, piece)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What happens to the ranks' lines, and whether a summary follows them."""

    log_dir: Path | None = None
    """A folder for a file of each rank's lines; None for no files."""
    shown: frozenset[int] | None = None
    """The ranks whose lines the screen shows; None for all."""
    fold: bool = False
    """Show equal lines of several ranks once."""
    summary: bool = False
    """Say at the end how long the job took, and its peak memory."""


class Outlets:
    """The outlets of all ranks of a launcher. A context manager, which closes the files."""

    def __init__(
        self,
        console: Console,
        options: OutputOptions,
        ranks: Sequence[int],
        *,
        prefix: bool,
        tell: Callable[[str], None],
    ) -> None:
        """``ranks``: those that will write. ``prefix``: whether lines have one. ``tell``: takes the
        launcher's own text. Raises InvalidUsageError if the files cannot be made.
        """
        self._console = console
        self._has_prefix = prefix
        self._shown = set(ranks) if options.shown is None else options.shown.intersection(ranks)
        self._files: dict[int, LogFile] = {}
        if options.log_dir is not None:
            try:
                options.log_dir.mkdir(parents=True, exist_ok=True)
                for rank in ranks:
                    self._files[rank] = LogFile(options.log_dir / f"rank{rank}.log", tell)
            except OSError as error:
                raise InvalidUsageError(f"--log-dir: no file can be written: {error}") from None
        self._foldings = {
            screen: Folding(screen, partial(self._prefix, screen), len(self._shown))
            for screen in console.screens
            if options.fold
        }

    def __enter__(self) -> Outlets:
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def of(self, rank: int, screen: Screen) -> tuple[Outlet, ...]:
        """Return the outlets of the stream of ``rank`` that belongs on ``screen``."""
        found: list[Outlet] = [self._files[rank]] if rank in self._files else []
        if rank in self._shown:
            folding = self._foldings.get(screen)
            found.append(
                ScreenOutlet(screen, self._prefix(screen, [rank]))
                if folding is None
                else FoldingOutlet(folding, rank)
            )
        return tuple(found)

    def _prefix(self, screen: Screen, ranks: Sequence[int]) -> bytes:
        return self._console.prefix(ranks, screen) if self._has_prefix else b""

    def due(self, now: float) -> float:
        """Return the seconds until `release` has something to show."""
        return min((folding.due(now) for folding in self._foldings.values()), default=math.inf)

    def release(self, now: float = math.inf) -> None:
        """Show what has waited long enough at ``now``, everything without it; write the files."""
        for folding in self._foldings.values():
            folding.release(now)
        for file in self._files.values():
            file.flush()
