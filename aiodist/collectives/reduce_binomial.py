"""Reduce up a binomial tree.

Steps: each rank receives its children's partial results, nearest child first, adds them to its own
data in that order, and sends the sum to its parent; ceil(log2 n) rounds.
Bytes per rank: N, the root none.
Best for small data.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import slots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.tree import children, parent


async def reduce_binomial(
    channel: Channel, root: int, data: memoryview, reduce: Reduction, scratch: Scratch
) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read.

    Scratch: N for each child, of which there are at most ceil(log2 n).
    """
    size = channel.size
    place = (channel.rank - root) % size
    below = children(place, size)
    parts = slots(scratch, len(below), len(data))
    receives = [
        channel.recv((child + root) % size, part) for child, part in zip(below, parts, strict=True)
    ]
    result = data
    for part, received in zip(parts, receives, strict=True):
        await received
        if result is data and place:
            reduce.into(data, part, part)
            result = part
        else:
            reduce(result, part)
    if place:
        await channel.send((parent(place) + root) % size, result)
