"""All-gather after Bruck, Ho, Kipnis, Upfal and Weathersby (1997).

Steps: each rank lays out the blocks in the order rank, rank+1, ... in scratch memory. In round k
it sends the first 2^k of them (fewer in the last round) to rank - 2^k. It receives as many from
rank + 2^k and appends them. ceil(log2 n) rounds for any n. At the end it copies the blocks out.
Bytes per rank: (n-1)/n of the total for equal blocks, in ceil(log2 n) messages.
Best for small blocks, where messages count; costs one copy in and one out.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import offsets_of
from aiodist.collectives.reduction_protocol import Scratch
from aiodist.copying import copy


async def all_gather_bruck(
    channel: Channel, blocks: Sequence[memoryview], scratch: Scratch
) -> None:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already.

    All ranks know all lengths, which may differ. Scratch: the total of all blocks.
    """
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    order = [*blocks[rank:], *blocks[:rank]]
    at = offsets_of([len(block) for block in order])
    staging = scratch(at[size])
    distances = [1 << k for k in range((size - 1).bit_length())]
    receives = [
        channel.recv((rank + have) % size, staging[at[have] : at[min(2 * have, size)]])
        for have in distances
    ]
    staging[: at[1]] = order[0]
    sends = []
    for have, receive in zip(distances, receives, strict=True):
        # What the receiver still lacks, whose layout starts `have` blocks before ours.
        sends.append(channel.send((rank - have) % size, staging[: at[min(have, size - have)]]))
        await receive
    for i in range(1, size):
        copy(order[i], staging[at[i] : at[i + 1]])
    for sent in sends:
        await sent
