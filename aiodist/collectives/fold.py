"""Folding a number of ranks that is no power of two down to one (Rabenseifner 2004).

With n = p + extra ranks, p the largest power of two, the first 2 * extra ranks form neighbouring
pairs. The even one of each pair gives its data to the odd one and sits out; at the end it gets the
result back. Places of the p that play keep the order of their ranks.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction_protocol import Reduction, Scratch


class Fold:
    """Who plays at which place. ``place`` is this rank's, or -1 where it sits out."""

    __slots__ = ("_extra", "place", "places")

    def __init__(self, rank: int, size: int) -> None:
        self.places = 1 << size.bit_length() - 1
        self._extra = extra = size - self.places
        if rank >= 2 * extra:
            self.place = rank - extra
        else:
            self.place = rank // 2 if rank % 2 else -1

    def rank_at(self, place: int) -> int:
        """The rank that plays at ``place``."""
        return 2 * place + 1 if place < self._extra else place + self._extra

    async def enter(
        self, channel: Channel, data: memoryview, reduce: Reduction, scratch: Scratch
    ) -> None:
        """Even ranks of pairs send ``data``; odd ones reduce it into theirs, lower rank first."""
        rank = channel.rank
        if self.place < 0:
            await channel.send(rank + 1, data)
        elif self.place < self._extra:
            other = scratch(len(data))
            await channel.recv(rank - 1, other)
            reduce(data, other, True)

    async def leave(self, channel: Channel, data: memoryview) -> None:
        """Odd ranks of pairs give the result to the even ones."""
        rank = channel.rank
        if self.place < 0:
            await channel.recv(rank + 1, data)
        elif self.place < self._extra:
            await channel.send(rank - 1, data)
