"""Reduce-scatter by recursive halving, for powers of two (Rabenseifner 2004).

Steps: the input is copied into scratch memory. In log2 n rounds, ranks that differ in the highest
bit left exchange halves of the stretch both still work on. Each reduces the half that holds its own
block, the lower ranks' partial result first.
Bytes per rank: (n-1)/n of the total for equal blocks, in log2 n messages.
Best for small data on many ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import offsets_of
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.copying import copy


async def reduce_scatter_halving(
    channel: Channel,
    blocks: Sequence[memoryview],
    out: memoryview,
    reduce: Reduction,
    scratch: Scratch,
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block.

    ``blocks`` (of lengths equal on all ranks, uneven or not) are only read. The number of ranks
    must be a power of two. Scratch: at most twice the total of all blocks.
    """
    rank, size = channel.rank, channel.size
    assert size & (size - 1) == 0, "recursive halving needs a power of two"
    at = offsets_of([len(block) for block in blocks])
    partial = scratch(at[size])
    for r, block in enumerate(blocks):
        partial[at[r] : at[r + 1]] = block
    start, end = 0, size
    while end - start > 1:
        middle = (start + end) // 2
        partner = rank ^ (middle - start)
        if rank < middle:
            given, start, end = partial[at[middle] : at[end]], start, middle
        else:
            given, start, end = partial[at[start] : at[middle]], middle, end
        kept = partial[at[start] : at[end]]
        other = scratch(len(kept))
        received = channel.recv(partner, other)
        sent = channel.send(partner, given)
        await received
        reduce(kept, other, partner < rank)
        await sent
    copy(out, partial[at[rank] : at[rank + 1]])
