"""What the two ends of a way through memory have in common: a bulk ring's, or an eager ring's."""

from __future__ import annotations

import threading


class RingEnd:
    """The lines of the tables for this pair of ranks, and the sender's segment."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        """``rank``: at the other end."""
        self.rank = rank
        self.is_closed = False
        self._segment = segment
        self._mine = mine
        self._theirs = theirs
        self._count = 0  # what was put up, or taken, or looked at
        self._told = 0
        self._fence = threading.Lock()

    def _settle(self) -> None:
        # An atomic instruction: what was stored before is visible before anything is loaded after.
        with self._fence:
            pass

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        self.is_closed = True
        for view in (self._segment, self._mine, self._theirs):
            view.release()
