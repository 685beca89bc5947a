"""Broadcast as a scatter followed by a ring all-gather (Barnett, van de Geijn et al. 1994).

Steps: the data is cut into n blocks. A binomial tree brings each rank its block in
ceil(log2 n) rounds; a message holds the blocks of a whole subtree. Then the blocks go round the ring
(n-1 rounds), which ends before the root: it has every block, and its memory is only read.
Bytes per rank: (n-1)/n * N in the ring, the rank before the root none, and in the tree the blocks of
its subtree without its own.
Best for large data on many ranks, where a chain would be too long.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import WINDOW, cut, offsets_of
from aiodist.collectives.tree import children, parent, subtree_end
from aiodist.completion import Pending


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
    before, after = (rank - 1) % size, (rank + 1) % size
    route = [blocks[(place - step) % size] for step in range(size)]
    # Blocks of the own subtree come again; they are the same bytes.
    receives = [channel.recv(before, block) for block in route[1:]] if place else []
    around: list[Pending[None]] = []
    for step, block in enumerate(route[:-1]):
        if place < size - 1:
            # The root would otherwise queue all of its data at once.
            if not place and step >= WINDOW:
                await around[step - WINDOW]
            around.append(channel.send(after, block))
        if place:
            await receives[step]
    for sent in (*sends, *around):
        await sent
