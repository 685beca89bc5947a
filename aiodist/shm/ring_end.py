"""What the two ends of a bulk ring, and of an eager ring, have in common."""

from __future__ import annotations

import threading


class RingEnd:
    """The control words of this pair of ranks, and the sender's segment."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        """Create an end. ``rank``: the rank at the other end."""
        self.rank = rank
        self.is_closed = False
        self._segment = segment
        self._mine = mine
        self._theirs = theirs
        self._count = 0  # pieces or messages filled, taken or looked at
        self._told = 0
        self._fence = threading.Lock()

    def _settle(self) -> None:
        # A memory fence: earlier stores are visible before any later load.
        with self._fence:
            pass

    def close(self) -> None:
        """Release the memory. Idempotent."""
        self.is_closed = True
        for view in (self._segment, self._mine, self._theirs):
            view.release()
