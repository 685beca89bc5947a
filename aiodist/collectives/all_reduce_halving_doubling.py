"""All-reduce by recursive halving, then recursive doubling (Rabenseifner 2004).

Steps: in round k ranks whose places differ in bit k split the stretch both still work on. Each
sends the half it gives up and reduces the half it keeps. In the end every place owns the result of
1/p of the data (p = 2^floor(log2 n)). The same rounds backwards gather the results in place.
Other numbers of ranks are folded (see fold.py). Each element is reduced at one place and copied.
Bytes per rank: 2 * (p-1)/p * N in 2 * log2 p messages; folded pairs: N more for the odd rank,
N in all for the even one.
Best in the middle: as few bytes as the ring's in logarithmically many rounds.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.fold import Fold
from aiodist.collectives.reduction_protocol import Reduction, Scratch


async def all_reduce_halving_doubling(
    channel: Channel, data: memoryview, reduce: Reduction, scratch: Scratch
) -> None:
    """Reduce ``data`` over all ranks, in place. Scratch: N/2, and N for folded ranks."""
    fold = Fold(channel.rank, channel.size)
    await fold.enter(channel, data, reduce, scratch)
    if fold.place >= 0:
        await _halve_and_double(channel, fold, data, reduce, scratch)
    await fold.leave(channel, data)


async def _halve_and_double(
    channel: Channel, fold: Fold, data: memoryview, reduce: Reduction, scratch: Scratch
) -> None:
    place, itemsize = fold.place, reduce.itemsize
    rounds: list[tuple[int, memoryview, memoryview]] = []  # partner, kept half, given half
    stretch = data
    for k in range(fold.places.bit_length() - 1):
        middle = len(stretch) // itemsize // 2 * itemsize
        low, high = stretch[:middle], stretch[middle:]
        keep, give = (high, low) if place >> k & 1 else (low, high)
        rounds.append((place ^ 1 << k, keep, give))
        stretch = keep
    if not rounds:
        return

    other = scratch(len(rounds[0][1]))
    for partner, keep, give in rounds:
        received = channel.recv(fold.rank_at(partner), other[: len(keep)])
        sent = channel.send(fold.rank_at(partner), give)
        await received
        reduce(keep, other[: len(keep)], partner < place)
        await sent
    # The halves given up are sent and free: the receives of their results can all be posted now.
    results = [channel.recv(fold.rank_at(partner), give) for partner, _, give in reversed(rounds)]
    sends = []
    for (partner, keep, _), result in zip(reversed(rounds), results, strict=True):
        sends.append(channel.send(fold.rank_at(partner), keep))
        await result
    for sent in sends:
        await sent
