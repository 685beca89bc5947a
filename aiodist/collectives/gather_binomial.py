"""Gather up a binomial tree, for equal blocks.

Steps: each rank collects the blocks of its subtree in scratch memory, from its children and its
own, and sends them to its parent in one message; ceil(log2 n) rounds.
Bytes per rank: the blocks of its subtree, one message; the root sends nothing.
Best for small blocks on many ranks: the root receives ceil(log2 n) messages and not n-1.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction_protocol import Scratch
from aiodist.collectives.tree import children, parent, subtree_end
from aiodist.copying import copy


async def gather_binomial(
    channel: Channel,
    root: int,
    data: memoryview,
    blocks: Sequence[memoryview] | None,
    scratch: Scratch,
) -> None:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``, which is equally long on all ranks.

    ``blocks`` is ignored on other ranks. Scratch: the blocks of the rank's subtree.
    """
    size, length = channel.size, len(data)
    place = (channel.rank - root) % size
    staging = scratch((subtree_end(place, size) - place) * length)
    receives = []
    for child in children(place, size):
        stretch = staging[(child - place) * length : (subtree_end(child, size) - place) * length]
        receives.append(channel.recv((child + root) % size, stretch))
    staging[:length] = data
    for received in receives:
        await received
    if place:
        await channel.send((parent(place) + root) % size, staging)
        return
    assert blocks is not None, "the root of a gather passes the blocks"
    for i in range(size):
        copy(blocks[(i + root) % size], staging[i * length : (i + 1) * length])
