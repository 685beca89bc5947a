"""Allocate the free pages of a segment and merge released ones."""

from __future__ import annotations

from bisect import bisect

from aiodist.alignment import LEAD

_PAGE = 4096


class PageAllocator:
    """Whole pages of a segment between two offsets, each from its byte `LEAD` to that of the next."""

    def __init__(self, start: int, end: int) -> None:
        start, end = _up(start - LEAD) + LEAD, (end - LEAD) // _PAGE * _PAGE + LEAD
        self._holes: list[tuple[int, int]] = [(start, end)] if start < end else []

    @property
    def left(self) -> int:
        """Return the number of free bytes."""
        return sum(end - start for start, end in self._holes)

    @property
    def largest(self) -> int:
        """Return the length of the largest free piece in bytes."""
        return max((end - start for start, end in self._holes), default=0)

    def take(self, nbytes: int) -> int:
        """Allocate ``nbytes``, at most `largest`, from the smallest hole that fits. Returns the offset."""
        nbytes = _up(nbytes)
        fitting = [hole for hole in self._holes if hole[1] - hole[0] >= nbytes]
        start, end = min(fitting, key=lambda hole: hole[1] - hole[0])
        place = self._holes.index((start, end))
        self._holes[place : place + 1] = [(start + nbytes, end)] if start + nbytes < end else []
        return start

    def give(self, offset: int, nbytes: int) -> None:
        """Release what `take` returned."""
        start, end = offset, offset + _up(nbytes)
        place = bisect(self._holes, (start, end))
        if place and self._holes[place - 1][1] == start:
            place -= 1
            start = self._holes.pop(place)[0]
        if place < len(self._holes) and self._holes[place][0] == end:
            end = self._holes.pop(place)[1]
        self._holes.insert(place, (start, end))


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
