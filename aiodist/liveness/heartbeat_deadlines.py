"""How long each watched rank may stay silent. Pure: the time is an argument."""

from __future__ import annotations


class HeartbeatDeadlines:
    """The watched ranks, and until when each has to be heard of."""

    def __init__(self, timeout: float, interval: float, now: float) -> None:
        """``timeout``: seconds of silence. ``interval``: between two looks, and between beats."""
        # A silence is seen at the next look, an interval later at most: that is part of it.
        self._patience = timeout - interval
        self._interval = interval
        self._looked = now
        self._limits: dict[int, float] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._limits

    def watch(self, rank: int, now: float) -> None:
        """From now on ``rank`` has to be heard of."""
        self._limits.setdefault(rank, now + self._patience)

    def release(self, rank: int) -> None:
        self._limits.pop(rank, None)

    def heard(self, rank: int, now: float) -> None:
        """``rank`` gave a sign of life."""
        if rank in self._limits:
            self._limits[rank] = now + self._patience

    def hurry(self, rank: int, limit: float) -> None:
        """The kernel says that ``rank`` has ended: it has until ``limit`` to show otherwise."""
        if rank in self._limits:
            self._limits[rank] = min(self._limits[rank], limit)

    def silent(self, now: float) -> list[int]:
        """Those whose time is up.

        A look that comes late was kept from coming: this process was stopped, or a computation
        held the interpreter. It heard nobody meanwhile, so that time counts for nobody.
        """
        gap = now - self._looked
        self._looked = now
        if gap > 2 * self._interval:
            for rank in self._limits:
                self._limits[rank] += gap - self._interval
        return [rank for rank, limit in self._limits.items() if now >= limit]
