"""A rank's own segment and those of the other ranks of its host, and which group has what in them.

The head of a segment says which segments its owner has mapped, and lists the areas that the owner
has laid out for groups. Whether all members of a group share memory is thus read from memory, and comes
out alike on all of them: it is so if each has mapped each, and each has found room.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

from aiodist.shared.area import Area, Shape, shape_within
from aiodist.shared.lane import LINES_BYTES, LaneIn, LaneOut, lay_lines, ring_within
from aiodist.shared.segment import Segment

log = logging.getLogger("aiodist")

DEFAULT_BYTES = 32 << 20
"""Of a rank's segment."""

MIN_BYTES = 1 << 20

_HEAD_BYTES = 64 << 10
_FULL = 2  # word: areas that are not listed by now will never be
_COUNT = 3  # word: how many areas are listed
_LEFT = 4  # word: the owner has left in good order
_ENTRIES = 8  # first word of the list
_ENTRY = 4  # words: area id, offset (0: no room), bytes of a chunk, depth
_MAX_ENTRIES = 1000
_MAPPED = _ENTRIES + _ENTRY * _MAX_ENTRIES  # first word of a list by rank: which segment is mapped
_MAX_RANKS = _HEAD_BYTES // 8 - _MAPPED

_NOT_MAPPED = 1
"""In that list: it cannot be. 0: not known yet."""

_PAGE = 4096


class SharedMemory:
    """One rank's. ``create`` first, then ``meet`` with the descriptions of all ranks."""

    def __init__(self, rank: int, segment: Segment) -> None:
        self.rank = rank
        self._own = segment
        self._segments: dict[int, Segment] = {rank: segment}
        self._heads: dict[int, memoryview] = {}
        self._digests: dict[int, int] = {}  # what each rank's entry in the lists should say
        self._free = _HEAD_BYTES
        self._entries: dict[int, tuple[int, Shape] | None] = {}
        self._places: dict[int, int] = {}  # of the ranks of this host in the tables of lanes
        self._lanes: list[LaneIn | LaneOut] = []

    @classmethod
    def create(cls, rank: int, nbytes: int) -> SharedMemory:
        """Raises OSError where this system has no such memory."""
        return cls(rank, Segment.create(max(nbytes, MIN_BYTES)))

    @property
    def description(self) -> str:
        """For the other ranks, to open this rank's segment."""
        return self._own.description

    def meet(self, descriptions: Mapping[int, str]) -> None:
        """Map the segments of the ranks of this host; ``descriptions`` are equal on all of them.

        A rank without memory has an empty one.
        """
        failures = []
        head = self._own.view[:_HEAD_BYTES].cast("Q")
        for rank, description in descriptions.items():
            if not description or rank >= _MAX_RANKS:
                continue
            digest = _NOT_MAPPED
            try:
                if rank != self.rank:
                    self._segments[rank] = Segment.open(description)
                digest = self._digests[rank] = _digest(description)
                self._heads[rank] = self._segments[rank].view[:_HEAD_BYTES].cast("Q")
            except OSError as error:
                failures.append(f"the memory of rank {rank} cannot be mapped: {error}")
            head[_MAPPED + rank] = digest
        self._places = {rank: place for place, rank in enumerate(sorted(descriptions))}
        if self._has_table(self.rank):
            self._free += self._table_bytes
            for rank in self._places:
                lines = self._lines(self.rank, rank)
                if lines is not None:
                    lay_lines(lines)
        if failures:
            log.warning("rank %d uses streams instead of shared memory: %s", self.rank, failures[0])

    def forget(self, rank: int) -> None:
        """Another process has taken the place of ``rank``; it shares no memory."""
        if self._heads.pop(rank, None) is not None:
            self._heads[self.rank][_MAPPED + rank] = _NOT_MAPPED
            self._close_lanes([lane for lane in self._lanes if lane.rank == rank])
            self._segments.pop(rank).close()

    def could_share(self, ranks: Sequence[int]) -> bool:
        """Whether this rank has mapped all of ``ranks``. If not, no member shares with its group."""
        return all(rank in self._heads for rank in ranks)

    def lay_out(self, area: int, room_for: int = 4) -> None:
        """Make an area in the own segment, with the id ``area``, or note that there is no room.

        It gets one ``room_for``-th of what is left, at most what it can use.
        """
        if area in self._entries:
            return
        head = self._heads[self.rank]
        count = head[_COUNT]
        if count == _MAX_ENTRIES:
            head[_FULL] = 1
            return
        left = len(self._own.view) - self._free
        shape = shape_within(left // room_for) or shape_within(left)
        entry = _ENTRIES + count * _ENTRY
        if shape is not None:
            self._entries[area] = (self._free, shape)
            head[entry + 1] = self._free
            head[entry + 2] = shape.chunk_bytes
            head[entry + 3] = shape.depth
            self._free += -(-shape.nbytes // _PAGE) * _PAGE
        else:
            self._entries[area] = None
        head[entry] = area
        head[_COUNT] = count + 1

    def look(self, area: int, ranks: Sequence[int]) -> list[Area] | str | None:
        """The areas of ``ranks`` under one id; None while somebody has not said; or why there are none.

        The answer is the same on all ``ranks`` once it is not None.
        """
        found: list[tuple[int, int, Shape]] = []
        for rank in ranks:
            head = self._heads[rank]
            for other in ranks:
                mapped = head[_MAPPED + other]
                if mapped == _NOT_MAPPED:
                    return f"rank {rank} cannot map the memory of rank {other}"
                if mapped != self._digests[other]:
                    return None
        for rank in ranks:
            head = self._heads[rank]
            for entry in range(_ENTRIES, _ENTRIES + head[_COUNT] * _ENTRY, _ENTRY):
                if head[entry] == area:
                    break
            else:
                if head[_FULL]:
                    return f"rank {rank} has listed all the areas it can"
                return None
            offset, chunk, depth = head[entry + 1], head[entry + 2], head[entry + 3]
            if not offset:
                return f"the segment of rank {rank} has no room left"
            found.append((rank, offset, Shape(chunk, depth)))
        return [
            Area(self._segments[rank].view[offset : offset + shape.nbytes], shape)
            for rank, offset, shape in found
        ]

    def silent(self, area: int, ranks: Sequence[int]) -> list[int]:
        """Those of ``ranks`` that have laid out nothing under this id so far."""
        return [rank for rank in ranks if not self._lists(rank, area)]

    def _lists(self, rank: int, area: int) -> bool:
        head = self._heads.get(rank)
        if head is None:
            return False
        end = _ENTRIES + head[_COUNT] * _ENTRY
        return any(head[entry] == area for entry in range(_ENTRIES, end, _ENTRY))

    # -- lanes

    def lane_to(self, rank: int) -> LaneOut | None:
        """Room in the own segment for what is sent to ``rank``; once for each.

        None where ``rank`` has not mapped this segment, or no room is left: a quarter of the
        segment is kept for groups.
        """
        head = self._heads.get(rank)
        if head is None or head[_MAPPED + self.rank] != self._digests[self.rank]:
            return None
        mine, theirs = self._lines(self.rank, rank), self._lines(rank, self.rank)
        size = len(self._own.view)
        ring = ring_within(self._free, (size - self._free - size // 4) // 4)
        if ring is None or mine is None or theirs is None:
            return None
        self._free += -(-ring.nbytes // _PAGE) * _PAGE
        lane = LaneOut(rank, self._own.view[:], ring, mine, theirs)
        self._lanes.append(lane)
        return lane

    def lane_from(self, rank: int) -> LaneIn | None:
        """The memory in which ``rank`` may put what it sends; None where it is not mapped."""
        mine, theirs = self._lines(self.rank, rank), self._lines(rank, self.rank)
        if mine is None or theirs is None:
            return None
        lane = LaneIn(rank, self._segments[rank].view[:], mine, theirs)
        self._lanes.append(lane)
        return lane

    @property
    def _table_bytes(self) -> int:
        return -(-len(self._places) * LINES_BYTES // _PAGE) * _PAGE

    def _has_table(self, rank: int) -> bool:
        """Whether ``rank`` is mapped, and its segment large enough for a table of so many."""
        segment = self._segments.get(rank)
        return segment is not None and _HEAD_BYTES + 8 * self._table_bytes <= len(segment.view)

    def _lines(self, rank: int, other: int) -> memoryview | None:
        """What the table of ``rank`` has for ``other``."""
        place = self._places.get(other)
        if place is None or not self._has_table(rank):
            return None
        start = _HEAD_BYTES + place * LINES_BYTES
        return self._segments[rank].view[start : start + LINES_BYTES].cast("Q")

    def _close_lanes(self, lanes: Sequence[LaneIn | LaneOut]) -> None:
        for lane in lanes:
            lane.close()
            self._lanes.remove(lane)

    # -- the end

    def leave(self) -> None:
        """For those that cannot be told otherwise: this rank goes in good order."""
        if self._heads:
            self._heads[self.rank][_LEFT] = 1

    def has_left(self, rank: int) -> bool:
        """Whether ``rank``, which has gone, went in good order."""
        head = self._heads.get(rank)
        return head is not None and head[_LEFT] == 1

    def close(self) -> None:
        """Unmap everything that nobody looks at any more. Idempotent."""
        self._close_lanes(self._lanes[:])
        for head in self._heads.values():
            head.release()
        self._heads.clear()
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()


def _digest(description: str) -> int:
    """8 bytes that stand for a segment; neither 0 nor 1."""
    return (
        int.from_bytes(hashlib.blake2b(description.encode(), digest_size=8).digest(), "little") | 2
    )
