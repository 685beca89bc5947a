"""Cache what a group's operations have made for the memory of one tensor, for the next operation on it."""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.collectives.schedule import Schedule, Step
from aiodist.collectives.views import CachedView

MOST_STEPS = 1 << 14
"""The most steps that a group caches. One takes 340 to 1,260 bytes, with its views."""

PATIENCE = 8
"""A full cache is emptied after this many misses for each entry.

A training loop uses the same tensors again and again. If they are too many for the cache and each
new entry replaced the oldest, every round would make all steps anew. So some entries stay, and the
others are not cached."""


class TensorViewCache:
    """The schedules of one group's equal operations in chunks on the same memory."""

    __slots__ = ("_kept", "_refused")

    def __init__(self) -> None:
        self._kept: dict[CachedView, int] = {}
        self._refused = 0  # requests since the cache is full

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
        """Drop all schedules, and with them their views of shared memory."""
        for data in self._kept:
            data.schedule = None
        self._kept.clear()
        self._refused = 0
