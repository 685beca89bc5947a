"""Reduce-scatter around a ring, in chunks: the first half of the ring all-reduce.

Steps: block r's partial result starts at rank r+1 and goes round to rank r. Each rank adds its part
on the way. n-1 steps; chunks of a block follow one another (see ring.py).
Bytes per rank: all blocks but its own, (n-1)/n of the total for equal blocks: the minimum; in
n-1 messages a segment.
Best for large data.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import CHUNK
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.ring import run_ring
from aiodist.copying import copy


async def reduce_scatter_ring(
    channel: Channel,
    blocks: Sequence[memoryview],
    out: memoryview,
    reduce: Reduction,
    scratch: Scratch,
    chunk: int = CHUNK,
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block.

    ``blocks`` (of lengths equal on all ranks, uneven or not) are only read. Scratch: at most
    2 * WINDOW chunks.
    """
    if channel.size == 1:
        copy(out, blocks[0])
        return
    await run_ring(channel, blocks, out, reduce, scratch, chunk, gather=False)
