"""Reduce as a reduce-scatter followed by a gather (Rabenseifner 2004).

Steps: the data is cut into n blocks; a ring reduce-scatter leaves each rank the result of one
(n-1 steps), which it sends to the root.
Bytes per rank: (n-1)/n * N in the ring, and N/n to the root.
Best in the middle: every rank reduces only N * (n-1)/n, and no byte waits for a whole chain.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_linear import gather_linear
from aiodist.collectives.partition import CHUNK, cut
from aiodist.collectives.reduce_scatter_ring import reduce_scatter_ring
from aiodist.collectives.reduction_protocol import Reduction, Scratch


async def reduce_scatter_gather(
    channel: Channel,
    root: int,
    data: memoryview,
    reduce: Reduction,
    scratch: Scratch,
    chunk: int = CHUNK,
) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read.

    Scratch: at most 2 * WINDOW chunks, and N/n on ranks other than the root.
    """
    rank = channel.rank
    blocks = cut(data, reduce.itemsize, channel.size)
    own = blocks[rank] if rank == root else scratch(len(blocks[rank]))
    await reduce_scatter_ring(channel, blocks, own, reduce, scratch, chunk)
    await gather_linear(channel, root, own, blocks if rank == root else None)
