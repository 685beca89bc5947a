"""A bulk ring: chunks in the sender's segment for one receiver, with control words beside them.

The sender copies a piece of a message into the next chunk of its ring, describes it in control
words and increments its count. The receiver copies the piece out and increments its own count. The
words are in the table behind the head of each segment, which has some cache lines for each other
rank of the host::

    emptied, sleep     pieces this rank has taken; 0, or the number of its current sleep.
    filled, awaited    pieces it has filled; the count of taken pieces up to which it sleeps.
    pieces             for each chunk: offset in the segment, length in bytes, ticket.

Invariants: a rank writes only to its own segment. A rank that is about to sleep stores that first
and then looks for work once more. Its peer stores the work first and then looks whether the rank
sleeps. An atomic instruction between the two steps, on both sides, keeps the processor from
swapping them, so no wake-up is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.shm.ring_end import RingEnd

CHUNK_BYTES = 512 << 10
"""Length of a chunk if there is room: it stays in the cache from the sender's copy to the
receiver's."""

MIN_CHUNK_BYTES = 64 << 10
DEPTH = 4
"""Chunks of a bulk ring: the sender fills one while the receiver empties another."""

_BULK_EMPTIED = 0
_SLEEP = 1
_BULK_FILLED = 8
_AWAITED = 9
_PIECES = 16
_WORDS = 4  # words of a piece: offset, length, ticket; the last is not used
LINES_BYTES = 8 * (_PIECES + _WORDS * DEPTH)
"""Bytes of the table for one other rank."""


@dataclass(frozen=True, slots=True)
class BulkRingLayout:
    """Where the chunks of a bulk ring are in the sender's segment."""

    chunk_bytes: int
    depth: int
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return self.depth * self.chunk_bytes

    def at(self, offset: int) -> BulkRingLayout:
        """Return the same layout at another offset."""
        return replace(self, offset=offset)


def layout_for(nbytes: int) -> BulkRingLayout | None:
    """Return the best layout that fits in ``nbytes``, or None if none fits."""
    chunk = CHUNK_BYTES
    while chunk >= MIN_CHUNK_BYTES:
        for depth in (DEPTH, 2):
            if chunk * depth <= nbytes:
                return BulkRingLayout(chunk, depth)
        chunk //= 2
    return None


def init_control_words(lines: memoryview) -> None:
    """Initialise the own control words for one rank: a receiver is asleep until it polls."""
    lines[_SLEEP] = 1


class BulkRingWriter(RingEnd):
    """The sender's end; ``rank`` receives. It can send while it is attached to chunks."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self.users = 0
        """Messages that need the chunks."""
        self.chunk_bytes = 0
        self._depth = 0
        self._ring: BulkRingLayout | None = None

    @property
    def is_attached(self) -> bool:
        return self._ring is not None

    @property
    def is_idle(self) -> bool:
        """Whether the receiver has taken every piece, and no message needs the chunks."""
        return not self.users and self._theirs[_BULK_EMPTIED] == self._count

    def attach(self, ring: BulkRingLayout) -> None:
        """Use these chunks from now on. Call it only while detached."""
        self._ring = ring
        self.chunk_bytes = ring.chunk_bytes
        self._depth = ring.depth

    def detach(self) -> BulkRingLayout:
        """Give up the chunks and return their layout. Call it only while idle, or if the receiver
        is gone.
        """
        ring, self._ring = self._ring, None
        assert ring is not None
        return ring

    def free(self) -> int:
        """Return how many chunks may be filled. Raises ProtocolError if the peer's count is
        impossible.
        """
        in_use = self._count - self._theirs[_BULK_EMPTIED]
        if not 0 <= in_use <= self._depth:
            raise ProtocolError(
                f"rank {self.rank} has taken {self._theirs[_BULK_EMPTIED]} pieces out of shared "
                f"memory, of {self._count} that were put there for it"
            )
        return self._depth - in_use

    def fill(self, data: memoryview, ticket: int) -> bool:
        """Put ``data`` into the next chunk, which must be free. Returns whether the receiver must
        be woken.
        """
        assert self._ring is not None
        start = self._ring.offset + self._count % self._depth * self.chunk_bytes
        copy(self._segment[start : start + len(data)], data)
        mine, piece = self._mine, _PIECES + self._count % DEPTH * _WORDS
        mine[piece] = start
        mine[piece + 1] = len(data)
        mine[piece + 2] = ticket
        self._count += 1
        mine[_BULK_FILLED] = self._count
        self._settle()
        sleep = self._theirs[_SLEEP]
        if sleep and sleep != self._told:
            self._told = sleep
            return True
        return False

    @property
    def is_watched(self) -> bool:
        """Whether the receiver polls and needs no wake-up."""
        return not self.is_closed and not self._theirs[_SLEEP]

    def will_wake(self) -> None:
        """Record that a frame is about to be sent which also wakes the receiver."""
        self._told = self._theirs[_SLEEP]

    def arm(self) -> None:
        """Ask to be woken when half of the chunks are free. The caller must look once more before
        it sleeps.
        """
        self._mine[_AWAITED] = self._count - self._depth // 2
        self._settle()


class BulkRingReader(RingEnd):
    """The receiver's end; ``rank`` sends, and ``segment`` is its whole segment."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self._sleeps = mine[_SLEEP]

    def next(self) -> tuple[int, memoryview] | None:
        """Return the ticket and the bytes of the next piece, or None if there is no piece.

        Raises ProtocolError if the piece lies outside the sender's segment.
        """
        count, theirs = self._count, self._theirs
        filled = theirs[_BULK_FILLED]
        if filled == count:
            return None
        piece = _PIECES + count % DEPTH * _WORDS
        start, length = theirs[piece], theirs[piece + 1]
        end = start + length
        if not (0 < filled - count <= DEPTH and start < end <= len(self._segment)):
            raise ProtocolError(
                f"rank {self.rank} names bytes {start} to {end} of its shared segment, which has "
                f"only {len(self._segment)} bytes, in piece {count} of {filled}"
            )
        return theirs[piece + 2], self._segment[start:end]

    def taken(self) -> bool:
        """Free the chunk of the next piece. Returns whether the sender must be woken."""
        self._count += 1
        self._mine[_BULK_EMPTIED] = self._count
        self._settle()
        awaited = self._theirs[_AWAITED]
        if self._told < awaited <= self._count:
            self._told = awaited
            return True
        return False

    def arm(self) -> None:
        """Ask to be woken by the next piece. The caller must look once more before it sleeps."""
        self._sleeps += 1
        self._mine[_SLEEP] = self._sleeps
        self._settle()

    def disarm(self) -> None:
        """Record that this rank polls again and needs no wake-up."""
        self._mine[_SLEEP] = 0
