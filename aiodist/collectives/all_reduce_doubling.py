"""All-reduce by recursive doubling, any number of ranks.

Steps: in round k ranks whose places differ in bit k exchange all their data, and both reduce it.
Both take the lower places' partial result first, so they compute the same bits. log2 p rounds for
p = 2^floor(log2 n); other numbers of ranks are folded (see fold.py), two rounds more.
Bytes per rank: N * log2 p; folded pairs: the even rank N, the odd one N * (log2 p + 1).
Best for small data: one exchange for two ranks, few rounds for many.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.fold import Fold
from aiodist.collectives.partition import slots
from aiodist.collectives.reduction_protocol import Reduction, Scratch


async def all_reduce_doubling(
    channel: Channel, data: memoryview, reduce: Reduction, scratch: Scratch
) -> None:
    """Reduce ``data`` over all ranks, in place. Scratch: N for each round."""
    rank, size = channel.rank, channel.size
    if size == 2:  # the same as below, without its bookkeeping
        other = scratch(len(data))
        received = channel.recv(1 - rank, other)
        await channel.send(1 - rank, data)
        await received
        reduce(data, other, rank == 1)
        return
    fold = Fold(rank, size)
    place, rounds = fold.place, fold.places.bit_length() - 1
    partners = [fold.rank_at(place ^ 1 << k) for k in range(rounds)] if place >= 0 else []
    others = slots(scratch, len(partners), len(data))
    # Distinct ranks, so all can be posted now: a fast partner's data finds its place ready.
    receives = [
        channel.recv(partner, other) for partner, other in zip(partners, others, strict=True)
    ]
    await fold.enter(channel, data, reduce, scratch)
    for partner, other, received in zip(partners, others, receives, strict=True):
        await channel.send(partner, data)
        await received
        reduce(data, other, partner < rank)
    await fold.leave(channel, data)
