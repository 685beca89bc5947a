"""A collective in chunks, carried out straight away, before a line or a record is made for it.

All put up a slot, as the operations of one slot put up theirs (`swap`): an empty one, or one that
says what is to come. When those are there whose chunks a rank reads, the algorithm runs on, here and
now, as far as it comes without having to wait for long: mostly to its end. One that does have to wait
gets what others wait with, and goes on where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from aiodist.collectives.moves import Moves, Row
from aiodist.completion import Pending
from aiodist.groups.board import NEAR_SECONDS, TURN_SECONDS, LineBoard
from aiodist.groups.swap import AT_ONCE_SECONDS, BYTE_SECONDS, Swap

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Fingerprint
    from aiodist.groups.plane import Plane

STRAIGHT_SECONDS = 5e-3
"""How long it may keep the loop busy, or a thread that drives the loop, before others have a turn."""

hurried: ContextVar[bool] = ContextVar("aiodist_hurried", default=False)
"""Whether the caller has something else to do meanwhile: then it is no longer than for others."""

Given = TypeVar("Given", contravariant=True)


class Chunked(Protocol[Given]):
    """What equal calls of such a collective have in common."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def head(self) -> int:
        """Bytes of the slot that each rank puts up before; mostly 0."""
        ...

    @property
    def meets(self) -> Sequence[tuple[int, int]]:
        """The other ranks that have to be there, each with the bytes of its slot: `head`."""
        ...

    def fill_head(self, slot: memoryview, given: Given) -> None:
        """Write what this rank puts up. May be done again, as `Plane.enter` does."""
        ...

    def agrees(self, slots: Sequence[memoryview], given: Given) -> bool:
        """Whether what those have put up, by rank, fits what is ``given``."""
        ...

    def moves(self, board: LineBoard, given: Given) -> Moves:
        """What this rank does on a board where they meet."""
        ...


class Direct(Swap[Given], Chunked[Given], Protocol[Given]):
    """Either of both; `in_chunks` says which."""

    @property
    def in_chunks(self) -> bool: ...


class Begun(NamedTuple):
    """An operation that has to wait now."""

    board: LineBoard
    row: Row
    waiting: Pending[None]

    async def rest(self, owner: object) -> None:
        """What is left of it, for a driver. ``owner``: of its memory, which is held until the end."""
        waiting: Pending[None] | None = self.waiting
        try:
            while waiting is not None:
                await waiting
                waiting = self.row.go_on()
        except BaseException:
            self.row.drop()
            raise
        del owner


class Straight(Generic[Given]):
    """A `Swap` of those slots, behind which the whole operation runs; ``begun``: if not to its end."""

    __slots__ = (
        "_board",
        "_plane",
        "_row",
        "_sequence",
        "_what",
        "begun",
        "fingerprint",
        "knows_all",
        "nbytes",
        "reads",
        "room",
    )

    pieces: Sequence[slice] = ()
    worth = int((NEAR_SECONDS - AT_ONCE_SECONDS) / BYTE_SECONDS)

    def __init__(self, plane: Plane, sequence: int, what: Chunked[Given]) -> None:
        self.begun: Begun | None = None
        self.fingerprint = what.fingerprint
        self.reads = what.meets
        self.knows_all = len(self.reads) == plane.size - 1
        self.nbytes = self.room = what.head
        self._plane = plane
        self._sequence = sequence
        self._what = what
        self._board: LineBoard | None = None
        self._row: Row | None = None

    def fill(self, slot: memoryview, given: Given) -> None:
        self._what.fill_head(slot, given)

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """There are none."""

    finish_piece = fill_piece

    def go_ahead(self, given: Given) -> None:
        if self.nbytes:  # what is done depends on what the others have put up
            return
        self._board = board = LineBoard(self._plane, self._sequence)
        self._row = row = Row(board, self._what.moves(board, given))
        row.begin()

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Whether the operation has ended."""
        if not self._what.agrees(slots, given):
            return False
        board, row = self._board, self._row
        if board is None or row is None:
            board = LineBoard(self._plane, self._sequence)
            row = Row(board, self._what.moves(board, given))
        board.begin_alone(TURN_SECONDS if hurried.get() else STRAIGHT_SECONDS, len(self.reads))
        waiting = row.go_on()
        if waiting is None:
            return True
        self.begun = Begun(board, row, waiting)
        return False
