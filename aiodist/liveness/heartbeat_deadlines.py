"""The deadline of each watched rank. Pure: the time is an argument."""

from __future__ import annotations


class HeartbeatDeadlines:
    """The watched ranks, each with the time until which it must send a sign of life."""

    def __init__(self, timeout: float, interval: float, now: float) -> None:
        """Create an empty table.

        ``timeout``: seconds of silence. ``interval``: seconds between two checks, and between
        heartbeats.
        """
        # The next check notices a silence up to one interval late. The timeout includes that.
        self._silence_limit = timeout - interval
        self._interval = interval
        self._looked = now
        self._limits: dict[int, float] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._limits

    def watch(self, rank: int, now: float) -> None:
        """Expect signs of life from ``rank`` from now on."""
        self._limits.setdefault(rank, now + self._silence_limit)

    def release(self, rank: int) -> None:
        self._limits.pop(rank, None)

    def heard(self, rank: int, now: float) -> None:
        """Record a sign of life of ``rank``."""
        if rank in self._limits:
            self._limits[rank] = now + self._silence_limit

    def shorten(self, rank: int, limit: float) -> None:
        """Shorten the deadline of ``rank`` to ``limit``: the kernel says that its process has ended."""
        if rank in self._limits:
            self._limits[rank] = min(self._limits[rank], limit)

    def silent(self, now: float) -> list[int]:
        """Return the ranks whose deadline has passed.

        A check that comes late was delayed: this process was stopped, or a computation held the
        interpreter. The process could not read meanwhile, so that time is added to every deadline.
        No rank gets more time than if it had been heard now: it may be watched since then.
        """
        gap = now - self._looked
        self._looked = now
        if gap > 2 * self._interval:
            for rank, limit in self._limits.items():
                self._limits[rank] = min(limit + gap - self._interval, now + self._silence_limit)
        return [rank for rank, limit in self._limits.items() if now >= limit]
