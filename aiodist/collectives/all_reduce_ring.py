"""All-reduce around a ring, in chunks (Patarasuk and Yuan 2009; Baidu 2017; Gloo, NCCL).

Steps: the data is cut into n blocks. In n-1 steps each block's partial result goes round once and
every rank adds its part; in n-1 further steps the results go round. Chunks of a block follow one
another in a pipeline (see ring.py). Each element is reduced at one place and then copied.
Bytes per rank: 2 * (n-1)/n * N, the minimum, in 2 * (n-1) messages a segment; with two ranks each
reduces one half while both directions are busy.
Best for large data.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import CHUNK, cut
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.ring import run_ring


async def all_reduce_ring(
    channel: Channel, data: memoryview, reduce: Reduction, scratch: Scratch, chunk: int = CHUNK
) -> None:
    """Reduce ``data`` over all ranks, in place. Scratch: at most 2 * WINDOW chunks."""
    if channel.size == 1:
        return
    blocks = cut(data, reduce.itemsize, channel.size)
    await run_ring(channel, blocks, blocks[channel.rank], reduce, scratch, chunk, gather=True)
