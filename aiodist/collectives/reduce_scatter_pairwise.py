"""Reduce-scatter by pairwise exchange.

Steps: in round s = 1 .. n-1 a rank sends block rank+s straight to its owner and receives from
rank-s that rank's part of its own block. Parts are reduced in the order of rounds.
Bytes per rank: all blocks but its own, in n-1 messages.
Best for small data on few ranks: no round waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import slots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.copying import copy


async def reduce_scatter_pairwise(
    channel: Channel,
    blocks: Sequence[memoryview],
    out: memoryview,
    reduce: Reduction,
    scratch: Scratch,
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block.

    ``blocks`` (of lengths equal on all ranks, uneven or not) are only read. Scratch: n-1 times
    this rank's block.
    """
    rank, size = channel.rank, channel.size
    mine = blocks[rank]
    parts = slots(scratch, size - 1, len(mine))
    receives = [
        channel.recv((rank - step) % size, part) for step, part in enumerate(parts, start=1)
    ]
    sends = [
        channel.send((rank + step) % size, blocks[(rank + step) % size]) for step in range(1, size)
    ]
    if not parts:
        copy(out, mine)
    for i, (part, received) in enumerate(zip(parts, receives, strict=True)):
        await received
        if i == 0:
            reduce.into(mine, part, out)
        else:
            reduce(out, part)
    for sent in sends:
        await sent
