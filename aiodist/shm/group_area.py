"""One rank's area for one group in its segment: control words, slots and chunks.

::

    control (4 KiB)   progress | asleep | a tag and fingerprint per slot | a tag per chunk
    slots             SLOTS times ``slot_bytes``: one message each, by turns of operations
    chunks            ``depth`` times ``chunk_bytes``: the pipeline of large operations

Words are 8 bytes, aligned, and stand on cache lines of their own. Only the owner of an area writes
to it; all other ranks read.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOTS = 2
"""Slots for operations n and n+1. A rank in operation n+1 has left operation n."""

_LENGTHS = 4096
"""A page beside the payload of a slot, for the lengths of its blocks."""

SLOT_BYTES = (256 << 10) + _LENGTHS
"""The payload that fits in any slot."""

LARGEST_SLOT_BYTES = (1 << 20) + _LENGTHS
"""Length of a slot if there is room: two ranks exchange this much faster whole than in chunks."""

CHUNK_BYTES = 512 << 10
"""Length of a chunk if there is room: it stays in the cache from one rank's write to the next's read."""

OVERSUBSCRIBED_CHUNK_BYTES = 1 << 20
"""Length of a chunk if ranks outnumber cores: the ranks yield to each other half as often."""

MIN_CHUNK_BYTES = 64 << 10
MAX_DEPTH = 8
DEPTH = 4
"""Chunks of one rank in flight."""

_LINE = 8  # words in a cache line
CONTROL_BYTES = 4096

PROGRESS = 0
ASLEEP = _LINE
SLOT_TAGS = tuple((2 + slot) * _LINE for slot in range(SLOTS))
"""Word of each slot's tag. Behind it: two words of fingerprint, the payload length, and `COPIED`."""
COPIED = 4
"""Offset behind a slot's tag of the word that counts the payload bytes present so far."""
CHUNK_TAGS = tuple((2 + SLOTS + chunk) * _LINE for chunk in range(MAX_DEPTH))


@dataclass(frozen=True, slots=True)
class AreaShape:
    """The length and number of an area's chunks, and the length of its slots."""

    chunk_bytes: int
    depth: int
    slot_bytes: int = SLOT_BYTES

    @property
    def nbytes(self) -> int:
        return CONTROL_BYTES + SLOTS * self.slot_bytes + self.depth * self.chunk_bytes

    @property
    def oversubscribed(self) -> bool:
        """Whether the length of the chunks says that ranks outnumber cores on the owner's host."""
        return self.chunk_bytes > CHUNK_BYTES

    def common(self, other: AreaShape) -> AreaShape:
        """Return the shape for which both have room."""
        return AreaShape(
            min(self.chunk_bytes, other.chunk_bytes),
            min(self.depth, other.depth),
            min(self.slot_bytes, other.slot_bytes),
        )


def shape_for(nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> AreaShape | None:
    """Return the best shape that fits in ``nbytes``, or None if none fits.

    ``chunk_bytes``: length of a chunk if there is room.
    """
    for chunk in (chunk_bytes, CHUNK_BYTES):
        if (whole := AreaShape(chunk, DEPTH, LARGEST_SLOT_BYTES)).nbytes <= nbytes:
            return whole
    room = nbytes - AreaShape(0, 0).nbytes
    chunk = CHUNK_BYTES
    while chunk >= MIN_CHUNK_BYTES:
        for depth in (DEPTH, 2):
            if chunk * depth <= room:
                return AreaShape(chunk, depth)
        chunk //= 2
    return None


class GroupArea:
    """Views into one rank's area."""

    __slots__ = ("chunks", "shape", "slots", "words")

    def __init__(self, memory: memoryview, shape: AreaShape) -> None:
        self.shape = shape
        self.words = memory[:CONTROL_BYTES].cast("Q")
        start, size = CONTROL_BYTES, shape.slot_bytes
        self.slots = [memory[start + i * size : start + (i + 1) * size] for i in range(SLOTS)]
        start += SLOTS * size
        size = shape.chunk_bytes
        self.chunks = [
            memory[start + i * size : start + (i + 1) * size] for i in range(shape.depth)
        ]
