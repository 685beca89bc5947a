"""A bulk ring: chunks in one rank's segment for what it sends to one other, and the words beside them.

The sender copies a piece of a message into the next chunk of its ring, says in words beside it what
it is, and counts; the receiver copies it out, and counts. The words are in the table that each
segment has behind its head, some lines for each other rank of the host::

    emptied, nap       how many pieces this rank has taken from the other, and whether it looks for more
    filled, awaited    how many it has put up for the other, and up to which taken one it sleeps
    pieces             for each chunk: its offset in the segment, the bytes in it, and whose they are

A rank writes to its own segment alone, and whoever is about to sleep stores that he does before he
looks for a last time; whoever has something for him stores it before he looks whether he sleeps. An
atomic instruction between the two, on both sides, keeps the processor from swapping them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.shm.ring_end import RingEnd

CHUNK_BYTES = 512 << 10
"""Of a chunk where there is room: it stays in the cache from the sender's copy to the receiver's."""

MIN_CHUNK_BYTES = 64 << 10
DEPTH = 4
"""Chunks of a bulk ring: the sender fills one while the receiver empties another."""

_BULK_EMPTIED = 0
_NAP = 1
_BULK_FILLED = 8
_AWAITED = 9
_PIECES = 16
_WORDS = 4  # of a piece: offset, bytes, whose; the last is not used
LINES_BYTES = 8 * (_PIECES + _WORDS * DEPTH)
"""Of the table, for one other rank."""


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
        """The same, somewhere else."""
        return replace(self, offset=offset)


def layout_for(nbytes: int) -> BulkRingLayout | None:
    """The best ring that ``nbytes`` have room for, None where they have none."""
    chunk = CHUNK_BYTES
    while chunk >= MIN_CHUNK_BYTES:
        for depth in (DEPTH, 2):
            if chunk * depth <= nbytes:
                return BulkRingLayout(chunk, depth)
        chunk //= 2
    return None


def lay_lines(lines: memoryview) -> None:
    """Begin with lines of the own table: whoever has never looked is asleep."""
    lines[_NAP] = 1


class BulkRingWriter(RingEnd):
    """The sender's end; ``rank`` receives. It sends while it is moored: while it has chunks."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self.users = 0
        """Messages that count on the chunks."""
        self.chunk_bytes = 0
        self._depth = 0
        self._ring: BulkRingLayout | None = None

    @property
    def is_attached(self) -> bool:
        return self._ring is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in the chunks that the receiver has not taken, nor will be now."""
        return not self.users and self._theirs[_BULK_EMPTIED] == self._count

    def attach(self, ring: BulkRingLayout) -> None:
        """These are its chunks from now on. Only where it has none."""
        self._ring = ring
        self.chunk_bytes = ring.chunk_bytes
        self._depth = ring.depth

    def detach(self) -> BulkRingLayout:
        """Give up the chunks. Only where it is idle, or nobody receives any more."""
        ring, self._ring = self._ring, None
        assert ring is not None
        return ring

    def free(self) -> int:
        """How many chunks may be filled. Raises ProtocolError where the other end counts nonsense."""
        in_use = self._count - self._theirs[_BULK_EMPTIED]
        if not 0 <= in_use <= self._depth:
            raise ProtocolError(
                f"rank {self.rank} has taken {self._theirs[_BULK_EMPTIED]} pieces out of shared memory, "
                f"of {self._count} that were put there for it"
            )
        return self._depth - in_use

    def fill(self, data: memoryview, whose: int) -> bool:
        """Put ``data`` into the next chunk, which is free. Whether the receiver must be woken."""
        assert self._ring is not None
        start = self._ring.offset + self._count % self._depth * self.chunk_bytes
        copy(self._segment[start : start + len(data)], data)
        mine, piece = self._mine, _PIECES + self._count % DEPTH * _WORDS
        mine[piece] = start
        mine[piece + 1] = len(data)
        mine[piece + 2] = whose
        self._count += 1
        mine[_BULK_FILLED] = self._count
        self._settle()
        nap = self._theirs[_NAP]
        if nap and nap != self._told:
            self._told = nap
            return True
        return False

    @property
    def is_watched(self) -> bool:
        """Whether the receiver looks for more by itself."""
        return not self.is_closed and not self._theirs[_NAP]

    def will_wake(self) -> None:
        """A frame that wakes the receiver, should it sleep, is about to be sent."""
        self._told = self._theirs[_NAP]

    def nap(self) -> None:
        """Ask to be woken when half of the chunks are free; look once more before sleeping."""
        self._mine[_AWAITED] = self._count - self._depth // 2
        self._settle()


class BulkRingReader(RingEnd):
    """The receiver's end; ``rank`` sends, and ``segment`` is all of its segment."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self._naps = mine[_NAP]

    def next(self) -> tuple[int, memoryview] | None:
        """The next piece: whose it is, and its bytes; None where there is none.

        Raises ProtocolError for what is outside the sender's segment.
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
                f"rank {self.rank} speaks of bytes {start} to {end} of its shared memory, which "
                f"has {len(self._segment)}, in piece {count} of {filled}"
            )
        return theirs[piece + 2], self._segment[start:end]

    def taken(self) -> bool:
        """The next piece is not needed any more. Whether the sender must be woken."""
        self._count += 1
        self._mine[_BULK_EMPTIED] = self._count
        self._settle()
        awaited = self._theirs[_AWAITED]
        if self._told < awaited <= self._count:
            self._told = awaited
            return True
        return False

    def nap(self) -> None:
        """Ask to be woken by the next piece; look once more before sleeping."""
        self._naps += 1
        self._mine[_NAP] = self._naps
        self._settle()

    def wake(self) -> None:
        """This rank looks by itself now."""
        self._mine[_NAP] = 0
