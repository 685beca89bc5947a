"""What a group's operations have made for the memory of one tensor, kept for the next one on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from aiodist.collectives.schedule import Schedule, Step
from aiodist.shm.group_area import SLOTS

MOST_STEPS = 1 << 14
"""That a group keeps; one takes 340 to 1,260 bytes, with the views that it is about."""

PATIENCE = 8
"""A group that is full releases what it keeps after so many vain requests for each that it keeps.

A training loop goes through the same tensors again and again. To released the oldest for each new one
would make all moves anew in each round, where they are too many: so some are kept, and the others not.
"""


class CachedView:
    """What an operation in chunks does with some memory; see `TensorViewCache`."""

    __slots__ = ("beside", "schedule", "used")

    def __init__(self) -> None:
        self.schedule: Sequence[Step] | None = None
        self.beside: object = None
        """The other memory that ``schedule`` are about."""
        self.used = False


class DataView(CachedView):
    """The memory of one tensor, and what operations have made for it so far."""

    __slots__ = ("steps", "view")

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self.view = view
        self.steps: list[Sequence[Callable[[], object]] | None] = [None] * SLOTS
        """By slot: what reduces the ranks' data into this."""


class BlocksView(CachedView):
    """The memory of one tensor or of several, as one block for each rank."""

    __slots__ = ("views",)

    def __init__(self, views: Sequence[memoryview]) -> None:
        super().__init__()
        self.views = views


class TensorViewCache:
    """The moves of equal operations in chunks on the same memory, of one group."""

    __slots__ = ("_kept", "_refused")

    def __init__(self) -> None:
        self._kept: dict[CachedView, int] = {}
        self._refused = 0  # requests, since it is full

    def keep(self, data: CachedView, beside: object, schedule: Iterator[Step]) -> Schedule:
        """Return the schedule of each operation like this one on ``data`` and ``beside``.

        From the second time on the schedule is cached as ``data.schedule``. The first time it is
        unknown whether another operation will follow, and making all steps beforehand takes longer.
        """
        if not data.used or data.beside is not beside:
            data.used, data.beside, data.schedule = True, beside, None
            self._kept.pop(data, None)
            return schedule
        if self._refused:
            self._refused += 1
            if self._refused <= PATIENCE * len(self._kept):
                return schedule
            self.forget()
        found = list(schedule)
        if sum(self._kept.values()) + len(found) > MOST_STEPS:
            self._refused = 1
        else:
            self._kept[data] = len(found)
            data.schedule = found
        return found

    def forget(self) -> None:
        """Let go of all moves, and with them of the memory that ranks share."""
        for data in self._kept:
            data.schedule = None
        self._kept.clear()
        self._refused = 0
