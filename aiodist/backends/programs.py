"""What a group's operations have made for the memory of one tensor, kept for the next one on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from aiodist.collectives.moves import Move, Moves
from aiodist.shared.area import SLOTS

MOST_MOVES = 1 << 14
"""That a group keeps; each has some hundred bytes for itself and for the views that it is about."""


class Data:
    """The memory of one tensor, and what operations have made for it so far."""

    __slots__ = ("beside", "moves", "steps", "used", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.steps: list[Sequence[Callable[[], object]] | None] = [None] * SLOTS
        """By slot: what reduces the ranks' data into this."""
        self.moves: Sequence[Move] | None = None
        """What an operation in chunks does with it; see `Programs`."""
        self.beside: object = None
        """The other memory that ``moves`` are about."""
        self.used = False


class Programs:
    """The moves of equal operations in chunks on the same memory, of one group."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Data, int] = {}

    def keep(self, data: Data, beside: object, moves: Iterator[Move]) -> Moves:
        """``moves``, which are those of each operation like this one on ``data`` and ``beside``.

        From the second time on they are kept, as ``data.moves``: of the first one nobody knows
        whether another will follow, and to make all of them beforehand takes longer.
        """
        if not data.used or data.beside is not beside:
            data.used, data.beside, data.moves = True, beside, None
            self._kept.pop(data, None)
            return moves
        found = list(moves)
        if sum(self._kept.values()) + len(found) > MOST_MOVES:
            self.forget()
        if len(found) <= MOST_MOVES:
            self._kept[data] = len(found)
            data.moves = found
        return found

    def forget(self) -> None:
        """Let go of all moves, and with them of the memory that ranks share."""
        for data in self._kept:
            data.moves = None
        self._kept.clear()
