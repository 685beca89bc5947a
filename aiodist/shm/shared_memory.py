"""A rank's own segment, those of the other ranks of its host, and the areas and rings in them.

The head of a segment says which segments its owner has mapped, and lists the areas that the owner
has laid out for groups. The members of a group share memory if each has mapped each and each has
found room. All members read this from memory, so all come to the same answer.

The room of an area is reused when every member has stored that it no longer reads this group's
areas, or is gone. Message rings have a part of the segment to themselves, so areas leave them room.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from aiodist.shm.area_directory import END, AreaDirectory, AreaState
from aiodist.shm.doorbell import Doorbell, open_doorbell, ring
from aiodist.shm.group_area import CHUNK_BYTES, CONTROL_BYTES, AreaShape, GroupArea, shape_for
from aiodist.shm.message_ring import LINES_BYTES, RingReader, RingWriter
from aiodist.shm.message_ring import MAX_BYTES as MAX_RING_BYTES
from aiodist.shm.message_ring import MIN_BYTES as MIN_RING_BYTES
from aiodist.shm.page_allocator import PageAllocator
from aiodist.shm.process_memory import allow_readers
from aiodist.shm.segment import Segment

log = logging.getLogger("aiodist")

DEFAULT_BYTES = 48 << 20
"""Length of a rank's segment."""

MIN_BYTES = 1 << 20

_HEAD_BYTES = 96 << 10
"""Room for the directory of areas, and for one word about each of more than 4,096 ranks."""

_LEFT = 4  # word: the owner has left in good order
_DOORBELLS = 5, 6  # words: the numbers of the owner's two of `Doorbell`
_MAPPED = END  # first word of a list by rank: which segment is mapped
_MAX_RANKS = _HEAD_BYTES // 8 - _MAPPED

_NOT_MAPPED = 1
"""In that list: the segment cannot be mapped. 0 means not known yet."""

_NO_ANSWER = None, AreaState.UNUSED
"""States of an area whose owner has not said what room it has; at UNUSED it never will."""

_PAGE = 4096

_FOR_RINGS = 4
"""At most one such part of a segment is for message rings, in equal shares for all other ranks of the
host. The smallest segment still has room for an area beside them."""


_AREA_SHARE = 4
"""An area gets one such part of the free room, at most what it can use."""


class SharedMemory:
    """The shared memory of one rank. Call ``create``, then ``meet`` with the descriptions of all ranks."""

    def __init__(
        self, rank: int, segment: Segment, doorbell: Doorbell, thread_bell: Doorbell
    ) -> None:
        self.rank = rank
        self._own = segment
        self._segments: dict[int, Segment] = {rank: segment}
        self._heads: dict[int, memoryview] = {}
        self._digests: dict[int, int] = {}  # what each rank's entry in the lists should say
        self.pages = PageAllocator(_HEAD_BYTES, len(segment.view))
        """The room of the own segment for areas."""
        self._rings = 0  # where the rings are in it
        self._ring_bytes = 0  # the length of each; 0 without rings
        self._lists: dict[int, AreaDirectory] = {}
        self._areas: dict[int, tuple[int, AreaShape]] = {}  # which have room here
        self._closing: dict[int, set[int]] = {}  # by area: members that may still look at it
        self._seen: dict[int, set[int]] = {}  # by such an area: members that have listed it
        self._places: dict[int, int] = {}  # of the ranks of this host in the tables of rings
        self._ends: list[RingReader | RingWriter] = []
        self.doorbell = doorbell
        """Another rank of this host has called `ring` for this rank's loop."""
        self.thread_bell = thread_bell
        """Another rank has called `ring` for a thread that is blocked in an operation."""
        self._doorbells: dict[tuple[int, bool], int] = {}  # open ones of other ranks

    @classmethod
    def create(cls, rank: int, nbytes: int) -> SharedMemory:
        """Create a segment of ``nbytes``. Raises OSError if this system has no such memory."""
        with ExitStack() as made:  # each needs descriptors, of which there may be too few
            segment = Segment.create(max(nbytes, MIN_BYTES))
            made.callback(segment.close)
            doorbell = Doorbell()
            made.callback(doorbell.close)
            memory = cls(rank, segment, doorbell, Doorbell())
            made.pop_all()
        return memory

    @property
    def description(self) -> str:
        """Return the text with which other ranks open this rank's segment."""
        return self._own.description

    def meet(self, descriptions: Mapping[int, str]) -> None:
        """Map the segments of this host's ranks; ``descriptions`` are equal on all of them.

        A rank without memory has an empty description.
        """
        own = self.description.partition(":")[0]
        if any(not description.startswith(f"{own}:") for description in descriptions.values()):
            allow_readers()
        failures = []
        head = self._own.view[:_HEAD_BYTES].cast("Q")
        # Before any rank sees that this one has mapped its memory.
        for word, bell in zip(_DOORBELLS, (self.doorbell, self.thread_bell), strict=True):
            head[word] = bell.number
        for rank, description in descriptions.items():
            if not description or rank >= _MAX_RANKS:
                continue
            digest = _NOT_MAPPED
            try:
                if rank != self.rank:
                    self._segments[rank] = Segment.open(description)
                digest = self._digests[rank] = _digest(description)
                self._heads[rank] = self._segments[rank].view[:_HEAD_BYTES].cast("Q")
                self._lists[rank] = AreaDirectory(self._heads[rank])
            except OSError as error:
                failures.append(f"the memory of rank {rank} cannot be mapped: {error}")
            head[_MAPPED + rank] = digest
        self._places = {rank: place for place, rank in enumerate(sorted(descriptions))}
        if self._has_table(self.rank):
            self._divide()
        if failures:
            log.warning("rank %d uses streams instead of shared memory: %s", self.rank, failures[0])

    def _divide(self) -> None:
        """Divide what the head and the table leave of the own segment: into rings, and room for areas."""
        nbytes = len(self._own.view)
        self.pages = PageAllocator(_HEAD_BYTES + self._table_bytes, nbytes)
        others = len(self._places) - 1
        share = nbytes // _FOR_RINGS // max(others, 1) // _PAGE * _PAGE
        self._ring_bytes = min(share, MAX_RING_BYTES) if share >= MIN_RING_BYTES else 0
        self._rings = self.pages.take(self._ring_bytes * others)

    def forget(self, rank: int) -> None:
        """Drop the memory of ``rank``: the process that replaced it shares none."""
        if self._heads.pop(rank, None) is not None:
            self._heads[self.rank][_MAPPED + rank] = _NOT_MAPPED
            del self._lists[rank]
            self._close_ends([end for end in self._ends if end.rank == rank])
            self._segments.pop(rank).close()
        for thread in (False, True):
            if (fd := self._doorbells.pop((rank, thread), -1)) >= 0:
                os.close(fd)

    def could_share(self, ranks: Sequence[int]) -> bool:
        """Return whether this rank has mapped all of ``ranks``. If not, their group shares no memory."""
        return all(rank in self._heads for rank in ranks)

    def is_mapped_by(self, rank: int) -> bool:
        """Return whether ``rank`` has mapped this rank's segment."""
        head = self._heads.get(rank)
        return head is not None and head[_MAPPED + self.rank] == self._digests[self.rank]

    def pid_of(self, rank: int) -> int:
        """Return the process of ``rank``, which is mapped."""
        return self._segments[rank].pid

    def ring(self, rank: int, group: int, thread: bool) -> bool:
        """Wake ``rank``, whose loop or blocked ``thread`` sleeps over the memory of ``group``.

        Returns False if its doorbell cannot be reached: then a frame on the stream has to wake it.
        """
        try:
            fd = self._doorbells.get((rank, thread), -1)
            if fd < 0:
                number = self._heads[rank][_DOORBELLS[thread]]
                fd = open_doorbell(self._segments[rank].pid, number)
                self._doorbells[rank, thread] = fd
            ring(fd, group)
        except (KeyError, OSError):
            return False
        return True

    def allocate_area(
        self, area: int, patient: bool = False, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """Allocate an area with the id ``area`` in the own segment, or record that there is no room.

        ``patient``: if other ranks must first release closed areas to make room, do nothing; the
        caller tries again. ``chunk_bytes``: as of `shape_for`.
        """
        listing = self._lists[self.rank]
        if listing.refuses(area) or listing.state(area) is not None:
            return
        self.reclaim()
        room = self.pages
        # Other groups will want room, too. An area may have all of it where so much is too little.
        fair = min(room.left // _AREA_SHARE, room.largest)
        shape = shape_for(fair, chunk_bytes) or shape_for(room.largest, chunk_bytes)
        if shape is None:
            if not (patient and self._areas.keys() & self._closing.keys()):
                listing.add(area, 0, AreaShape(0, 0))
            return
        offset = room.take(shape.nbytes)
        self._own.view[offset : offset + CONTROL_BYTES] = bytes(CONTROL_BYTES)  # no old flags
        if listing.add(area, offset, shape):
            self._areas[area] = offset, shape
        else:
            room.give(offset, shape.nbytes)

    def find_areas(self, area: int, ranks: Sequence[int]) -> list[GroupArea] | str | None:
        """Return the areas of ``ranks`` under one id, a text that says why they share none, or None.

        None means that a rank has not answered yet. Any other answer is the same on all ``ranks``.
        """
        for rank in ranks:
            head = self._heads[rank]
            for other in ranks:
                mapped = head[_MAPPED + other]
                if mapped == _NOT_MAPPED:
                    return f"rank {rank} cannot map the memory of rank {other}"
                if mapped != self._digests[other]:
                    return None
        found: list[tuple[int, int, AreaShape]] = []
        for rank in ranks:
            listing = self._lists[rank]
            refuses = listing.refuses(area)
            if listing.state(area) in _NO_ANSWER:
                return f"rank {rank} had too many groups at once" if refuses else None
            room = listing.room(area)
            if room is None:
                return f"the segment of rank {rank} has no room left"
            found.append((rank, *room))
        return [
            GroupArea(self._segments[rank].view[offset : offset + shape.nbytes], shape)
            for rank, offset, shape in found
        ]

    def has_answered(self, area: int) -> bool:
        """Return whether this rank has stored its room for this id, or that it has no room."""
        listing = self._lists.get(self.rank)
        return listing is None or listing.refuses(area) or listing.state(area) is not None

    def without_answer(self, area: int, ranks: Sequence[int]) -> list[int]:
        """Return those of ``ranks`` that have not yet stored an answer for this id."""
        return [rank for rank in ranks if self._state(rank, area) in _NO_ANSWER]

    def release_area(self, area: int, ranks: Sequence[int], all_listed: bool) -> None:
        """Record that this rank no longer reads any area of this id, which ``ranks`` share or would have.

        The room of the own area returns when all of them have recorded this too, or are gone. A rank that
        never laid one out has none: it says so to those that did, which keep theirs for it no longer.
        ``all_listed``: whether this rank has found the areas of all.
        """
        listing = self._lists.get(self.rank)
        if listing is None:
            return
        state = listing.state(area)
        if state == AreaState.OPEN:
            listing.close(area)
        if state == AreaState.OPEN or (state is None and listing.leave(area)):
            others = set(ranks) - {self.rank}
            self._closing[area] = others
            self._seen[area] = set(others) if all_listed else set()
            self.reclaim()

    def reclaim(self) -> None:
        """Reuse the room of closed areas that no member reads any more."""
        for area, others in list(self._closing.items()):
            others -= {rank for rank in others if self._has_released(rank, area)}
            if not others:
                del self._closing[area], self._seen[area]
                self._lists[self.rank].end(area)
                self._give_back(area)

    def _has_released(self, rank: int, area: int) -> bool:
        listing = self._lists.get(rank)
        refuses = listing is not None and listing.refuses(area)
        state = self._state(rank, area)
        if state == AreaState.OPEN:
            self._seen[area].add(rank)
        elif state is not None or rank in self._seen[area] or refuses:
            return True  # an area that is not listed any more was OVER long ago
        segment = self._segments.get(rank)
        return segment is None or segment.is_orphan

    def never_shared(self, area: int) -> None:
        """Record that no rank will read the areas under this id. The entry stays, to answer why."""
        self._give_back(area)

    def _give_back(self, area: int) -> None:
        if (found := self._areas.pop(area, None)) is not None:
            offset, shape = found
            self.pages.give(offset, shape.nbytes)

    def _state(self, rank: int, area: int) -> AreaState | None:
        listing = self._lists.get(rank)
        return None if listing is None else listing.state(area)

    # -- message rings

    def ring_writer_to(self, rank: int) -> RingWriter | None:
        """Return a new ring for messages to ``rank``, which must have mapped this segment.

        Returns None if the segment is too small for a ring to each rank of the host.
        """
        lines = self._lines_between(rank)
        if lines is None or not self._ring_bytes:
            return None
        place = self._places[rank] - (rank > self.rank)  # among the other ranks
        start = self._rings + place * self._ring_bytes
        out = RingWriter(rank, self._own.view[:], *lines, start, self._ring_bytes)
        self._ends.append(out)
        return out

    def ring_reader_from(self, rank: int) -> RingReader | None:
        """Return the ring from ``rank`` to this rank, or None if its segment is not mapped."""
        if (lines := self._lines_between(rank)) is None:
            return None
        end = RingReader(rank, self._segments[rank].view[:], *lines)
        self._ends.append(end)
        return end

    # -- the table

    @property
    def _table_bytes(self) -> int:
        return -(-len(self._places) * LINES_BYTES // _PAGE) * _PAGE

    def _has_table(self, rank: int) -> bool:
        """Return whether ``rank`` is mapped, and its segment is large enough for a table of this size."""
        segment = self._segments.get(rank)
        return segment is not None and _HEAD_BYTES + 8 * self._table_bytes <= len(segment.view)

    def _lines(self, rank: int, other: int) -> memoryview | None:
        """Return the control words in the table of ``rank`` for ``other``."""
        place = self._places.get(other)
        if place is None or not self._has_table(rank):
            return None
        start = _HEAD_BYTES + place * LINES_BYTES
        return self._segments[rank].view[start : start + LINES_BYTES].cast("Q")

    def _lines_between(self, rank: int) -> tuple[memoryview, memoryview] | None:
        """Return the control words of the own table for ``rank``, and those of its table for this rank."""
        mine = self._lines(self.rank, rank)
        theirs = self._lines(rank, self.rank)
        return None if mine is None or theirs is None else (mine, theirs)

    def _close_ends(self, ends: Sequence[RingReader | RingWriter]) -> None:
        for end in ends:
            end.close()
            self._ends.remove(end)

    # -- the end

    def leave(self) -> None:
        """Store that this rank leaves in good order, for the ranks that get no goodbye."""
        if self._heads:
            self._heads[self.rank][_LEFT] = 1

    def has_left(self, rank: int) -> bool:
        """Return whether ``rank`` has left in good order."""
        head = self._heads.get(rank)
        return head is not None and head[_LEFT] == 1

    def is_gone(self, rank: int) -> bool:
        """Return whether ``rank``, which is mapped, has left, or its process has ended."""
        segment = self._segments.get(rank)
        return segment is not None and (self.has_left(rank) or segment.is_orphan)

    def close(self) -> None:
        """Unmap the segments as soon as no view of them is left. Idempotent."""
        self._close_ends(self._ends[:])
        for head in self._heads.values():
            head.release()
        self._heads.clear()
        self._lists.clear()
        self._closing.clear()
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self.doorbell.close()
        self.thread_bell.close()
        for fd in self._doorbells.values():
            os.close(fd)
        self._doorbells.clear()


def _digest(description: str) -> int:
    """Return 8 bytes that stand for a segment; they are neither 0 nor 1."""
    return (
        int.from_bytes(hashlib.blake2b(description.encode(), digest_size=8).digest(), "little") | 2
    )
