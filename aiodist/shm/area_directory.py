"""The directory in the head of a segment: the areas that its owner has laid out, and their states.

Invariant: an entry is stored before it is counted, so a reader that finds an area's id also finds
the rest. Entries are reused, the oldest of those that are OVER first, so that other ranks can still
read an ended state for a while.

An area that finds no free entry is refused for good, because all ranks must come to the same
conclusion, however late they read. A list of all refused areas would need room as well. Areas are
therefore dealt by their ids to many buckets, and the directory remembers which buckets are shut: an
area of a shut bucket that is not listed never will be. The areas of all other buckets are listed
again once entries are free.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from aiodist.shm.group_area import AreaShape

MAX_ENTRIES = 1000
KEPT = 64
"""Entries in state OVER that can still be read."""

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
    """The state of an area, as its owner has stored it."""

    OPEN = 0
    CLOSED = 1
    """The owner no longer reads any member's area under this id."""
    OVER = 2
    """No member reads the area any more, and its room may be reused."""
    UNUSED = 3
    """The owner has left the group without a first operation: it laid no area out, and reads none."""


class AreaDirectory:
    """The directory of one segment. Only the owner of the segment may change it."""

    def __init__(self, head: memoryview) -> None:
        self._head = head
        self._over: deque[int] = deque()

    def refuses(self, area: int) -> bool:
        """Return whether ``area`` will never be listed, unless it is listed by now.

        Call it before `state`: the owner may list the area and then shut its bucket in between.
        """
        word, bit = divmod(area % BUCKETS, 64)
        return bool(self._head[_SHUT + word] >> bit & 1)

    def state(self, area: int) -> AreaState | None:
        """Return the state of ``area``, or None if it is not listed."""
        entry = self._find(area)
        return None if entry is None else AreaState(self._head[entry + 1] & _STATES)

    def room(self, area: int) -> tuple[int, AreaShape] | None:
        """Return the offset and shape of a listed area, or None if there was no room for it."""
        entry = self._find(area)
        assert entry is not None
        offset, chunk, depth, slot = self._head[entry + 1 : entry + _ENTRY]
        return (offset & ~_STATES, AreaShape(chunk, depth, slot)) if offset & ~_STATES else None

    def add(self, area: int, offset: int, shape: AreaShape) -> bool:
        """List an area; offset 0 means that it has no room. Returns False if the directory refuses it."""
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

    def leave(self, area: int) -> bool:
        """List an area that was never laid out as UNUSED. Returns False if the directory refuses it."""
        return self.add(area, AreaState.UNUSED, AreaShape(0, 0))

    def close(self, area: int) -> None:
        """Change the state from OPEN to CLOSED."""
        self._say(area, AreaState.CLOSED)

    def end(self, area: int) -> None:
        """Change the state to OVER."""
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
