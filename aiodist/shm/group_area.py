"""What one rank has for one group in its segment: words that say what is there, slots, chunks.

::

    control (4 KiB)   progress | asleep | a tag and a fingerprint for each slot | a tag for each chunk
    slots             SLOTS times ``slot_bytes``: one message each, by turns of operations
    chunks            ``depth`` times ``chunk_bytes``: the pipeline of large ones

Words are 8 bytes, aligned, and stand on cache lines of their own. Only the rank that an area
belongs to writes to it; all others read.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOTS = 2
"""An operation and the next one: whoever is in the next one has left the one before."""

_LENGTHS = 4096
"""A page behind what a slot is for: the lengths of as much in blocks."""

SLOT_BYTES = (256 << 10) + _LENGTHS
"""What any slot holds."""

LARGEST_SLOT_BYTES = (1 << 20) + _LENGTHS
"""What a slot holds where there is room: what two ranks swap faster whole than in chunks."""

CHUNK_BYTES = 512 << 10
"""Of a chunk where there is room: it stays in the cache from one rank's write to the next's read."""

CROWDED_CHUNK_BYTES = 1 << 20
"""The same where ranks outnumber cores: they give way to each other half as often."""

MIN_CHUNK_BYTES = 64 << 10
MAX_DEPTH = 8
DEPTH = 4
"""Chunks of one rank in flight."""

_LINE = 8  # words in a cache line
CONTROL_BYTES = 4096

PROGRESS = 0
ASLEEP = _LINE
SLOT_TAGS = tuple((2 + slot) * _LINE for slot in range(SLOTS))
"""Word of a slot's tag; behind it two words of fingerprint, one of payload length, and `COPIED`."""
COPIED = 4
"""Behind a slot's tag: how much of the payload is there already."""
CHUNK_TAGS = tuple((2 + SLOTS + chunk) * _LINE for chunk in range(MAX_DEPTH))


@dataclass(frozen=True, slots=True)
class AreaShape:
    """How large the chunks of an area are, how many, and how large its slots."""

    chunk_bytes: int
    depth: int
    slot_bytes: int = SLOT_BYTES

    @property
    def nbytes(self) -> int:
        return CONTROL_BYTES + SLOTS * self.slot_bytes + self.depth * self.chunk_bytes

    @property
    def crowded(self) -> bool:
        """Whether its rank says, by the length of its chunks, that ranks outnumber cores."""
        return self.chunk_bytes > CHUNK_BYTES

    def common(self, other: AreaShape) -> AreaShape:
        """What both have room for."""
        return AreaShape(
            min(self.chunk_bytes, other.chunk_bytes),
            min(self.depth, other.depth),
            min(self.slot_bytes, other.slot_bytes),
        )


def shape_for(nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> AreaShape | None:
    """The best shape that ``nbytes`` have room for, None where they have none.

    ``chunk_bytes``: of a chunk where there is room.
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
