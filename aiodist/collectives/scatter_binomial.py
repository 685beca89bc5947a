"""Scatter down a binomial tree, for equal blocks.

Steps: the root lines the blocks up in scratch memory. Each rank receives the blocks of its subtree
from its parent in one message and sends each child those of the child's; ceil(log2 n) rounds.
Bytes per rank: the blocks of its subtree without its own, one message a child.
Best for small blocks on many ranks: the root sends ceil(log2 n) messages and not n-1.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction_protocol import Scratch
from aiodist.collectives.tree import children, parent, subtree_end
from aiodist.copying import copy


async def scatter_binomial(
    channel: Channel,
    root: int,
    blocks: Sequence[memoryview] | None,
    out: memoryview,
    scratch: Scratch,
) -> None:
    """Fill ``out``, equally long on all ranks, on rank r with ``root``'s ``blocks[r]``.

    ``blocks`` is ignored on other ranks. Scratch: the blocks of the rank's subtree.
    """
    size, length = channel.size, len(out)
    place = (channel.rank - root) % size
    staging = scratch((subtree_end(place, size) - place) * length)
    if place:
        await channel.recv((parent(place) + root) % size, staging)
    else:
        assert blocks is not None, "the root of a scatter passes the blocks"
        for i in range(size):
            staging[i * length : (i + 1) * length] = blocks[(i + root) % size]
    sends = []
    for child in reversed(children(place, size)):
        stretch = staging[(child - place) * length : (subtree_end(child, size) - place) * length]
        sends.append(channel.send((child + root) % size, stretch))
    copy(out, staging[:length])
    for sent in sends:
        await sent
