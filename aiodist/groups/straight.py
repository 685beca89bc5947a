"""A collective in chunks, carried out straight away, before a line or a record is made for it.

All put up a slot, as the operations of one slot put up theirs (`swap`): an empty one, or one that
says what is to come. When those are there whose chunks a rank reads, the algorithm runs on, here and
now, as far as it comes without having to wait for long: mostly to its end. One that does have to wait
gets what others wait with, and goes on where it is.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from contextvars import ContextVar
from types import coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

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
Body = Coroutine[Any, Any, None]


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

    def run(self, board: LineBoard, given: Given) -> Body:
        """The algorithm, on a board where they have met."""
        ...


class Direct(Swap[Given], Chunked[Given], Protocol[Given]):
    """Either of both; `in_chunks` says which."""

    @property
    def in_chunks(self) -> bool: ...


class Begun(NamedTuple):
    """An operation that has to wait now."""

    board: LineBoard
    body: Body
    waiting: Pending[Any]

    async def rest(self, owner: object) -> None:
        """What is left of it, for a driver. ``owner``: of its memory, which is held until the end."""
        await _rest(self.body, self.waiting)
        del owner


class Straight(Generic[Given]):
    """A `Swap` of those slots, behind which the whole operation runs; ``begun``: if not to its end."""

    __slots__ = (
        "_board",
        "_body",
        "_plane",
        "_sequence",
        "_what",
        "begun",
        "fingerprint",
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
        self.nbytes = self.room = what.head
        self._plane = plane
        self._sequence = sequence
        self._what = what
        self._board: LineBoard | None = None
        self._body: Body | None = None

    def fill(self, slot: memoryview, given: Given) -> None:
        self._what.fill_head(slot, given)

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """There are none."""

    finish_piece = fill_piece

    def go_ahead(self, given: Given) -> None:
        if self.nbytes:  # what is done depends on what the others have put up
            return
        self._board = board = LineBoard(self._plane, self._sequence)
        self._body = body = self._what.run(board, given)
        body.send(None)  # until it waits for the others

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Whether the operation has ended."""
        if not self._what.agrees(slots, given):
            return False
        board = self._board or LineBoard(self._plane, self._sequence)
        body = self._body or self._what.run(board, given)
        seconds = TURN_SECONDS if hurried.get() else STRAIGHT_SECONDS
        board.begin_alone(seconds, len(self.reads))
        try:
            waiting = body.send(None)
        except StopIteration:
            return True
        self.begun = Begun(board, body, waiting)
        return False


@coroutine
def _rest(body: Body, waiting: Pending[Any]) -> Generator[Pending[Any], None, None]:
    try:
        yield waiting
    except BaseException as error:
        body.throw(error)  # which ends it
        raise
    yield from body
