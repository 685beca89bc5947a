"""The list in the head of a segment: which areas its owner has laid out, and which it has done with.

An entry is stored before it counts, so that who finds an area's id finds the rest as well. Entries are
used anew, the oldest of those that are over first: for a while others can read that one was.

An area that finds no entry free is refused, for good: all that read so must conclude alike, however
late. To remember every such area would take a list as well; so areas are dealt by their ids to many
buckets, and what is remembered is that a bucket is shut: what is in it and not listed never will be.
The areas of all other buckets are listed as before once entries are free again.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from aiodist.shm.group_area import AreaShape

MAX_ENTRIES = 1000
KEPT = 64
"""Entries that are over and still can be read."""

_COUNT = 3  # word: how many entries there are
_SHUT = 8  # first word of the buckets, a bit each
_SHUT_WORDS = 128
BUCKETS = 64 * _SHUT_WORDS
_ENTRIES = _SHUT + _SHUT_WORDS  # first word of the list
_ENTRY = 5  # words: area id, offset (0: no room) with its state, bytes of a chunk, depth, of a slot
END = _ENTRIES + _ENTRY * MAX_ENTRIES
"""The first word behind the list."""

_STATES = 3  # of the offset, whose lowest bits are zero


class AreaState(IntEnum):
    """Of an area, as its owner says."""

    OPEN = 0
    CLOSED = 1
    """The owner does not look at anybody's area under this id any more."""
    OVER = 2
    """Nobody does: the room is used for something else."""


class AreaDirectory:
    """One segment's. Its owner alone calls what changes it."""

    def __init__(self, head: memoryview) -> None:
        self._head = head
        self._over: deque[int] = deque()

    def refuses(self, area: int) -> bool:
        """Whether ``area``, unless it is listed by now, never will be.

        To be asked before `state`: in between the owner may list it, and then shut its bucket.
        """
        word, bit = divmod(area % BUCKETS, 64)
        return bool(self._head[_SHUT + word] >> bit & 1)

    def state(self, area: int) -> AreaState | None:
        """What the owner says of ``area``; None where it is not listed."""
        entry = self._find(area)
        return None if entry is None else AreaState(self._head[entry + 1] & _STATES)

    def room(self, area: int) -> tuple[int, AreaShape] | None:
        """Where the area is, and its shape; None where there was no room. It is listed."""
        entry = self._find(area)
        assert entry is not None
        offset, chunk, depth, slot = self._head[entry + 1 : entry + _ENTRY]
        return (offset & ~_STATES, AreaShape(chunk, depth, slot)) if offset & ~_STATES else None

    def add(self, area: int, offset: int, shape: AreaShape) -> bool:
        """List an area, or with offset 0 that it has no room. False where it is refused."""
        head, count = self._head, self._head[_COUNT]
        if self.refuses(area):
            return False
        if len(self._over) > KEPT:
            entry = self._over.popleft()
            head[entry] = 0
        elif count < MAX_ENTRIES:
            entry = _ENTRIES + count * _ENTRY
        else:
            word, bit = divmod(area % BUCKETS, 64)
            head[_SHUT + word] |= 1 << bit
            return False
        head[entry + 1] = offset
        head[entry + 2] = shape.chunk_bytes
        head[entry + 3] = shape.depth
        head[entry + 4] = shape.slot_bytes
        head[entry] = area
        head[_COUNT] = max(count, (entry - _ENTRIES) // _ENTRY + 1)
        return True

    def close(self, area: int) -> None:
        """OPEN becomes CLOSED."""
        self._say(area, AreaState.CLOSED)

    def end(self, area: int) -> None:
        """It is OVER."""
        self._over.append(self._say(area, AreaState.OVER))

    def _say(self, area: int, state: AreaState) -> int:
        entry = self._find(area)
        assert entry is not None
        self._head[entry + 1] = self._head[entry + 1] & ~_STATES | state
        return entry

    def _find(self, area: int) -> int | None:
        head = self._head
        for entry in range(_ENTRIES, _ENTRIES + head[_COUNT] * _ENTRY, _ENTRY):
            if head[entry] == area:
                return entry
        return None
