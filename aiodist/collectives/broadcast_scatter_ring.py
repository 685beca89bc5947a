"""Broadcast as a scatter followed by a ring all-gather (Barnett, van de Geijn et al. 1994).

Steps: the data is cut into n blocks. A binomial tree brings each rank its block in
ceil(log2 n) rounds; a message holds the blocks of a whole subtree. Then the blocks go round the ring
(n-1 rounds).
Bytes per rank: (n-1)/n * N in the ring, and in the tree the blocks of its subtree without its own.
Best for large data on many ranks, where a chain would be too long.
"""

from __future__ import annotations

from aiodist.collectives.all_gather_ring import all_gather_ring
from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import cut, offsets_of
from aiodist.collectives.tree import children, parent, subtree_end


async def broadcast_scatter_ring(channel: Channel, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    place = (rank - root) % size
    blocks = cut(data, 1, size)
    at = offsets_of([len(block) for block in blocks])
    if place:
        mine = data[at[place] : at[subtree_end(place, size)]]
        await channel.recv((parent(place) + root) % size, mine)
    sends = []
    for child in reversed(children(place, size)):
        theirs = data[at[child] : at[subtree_end(child, size)]]
        sends.append(channel.send((child + root) % size, theirs))
    # The root has every block and is sent them again; they are the same bytes.
    await all_gather_ring(channel, [blocks[(r - root) % size] for r in range(size)])
    for sent in sends:
        await sent
