"""Broadcast down a binomial tree.

Steps: each rank receives the data from its parent, then sends it to its children, the one with
the largest subtree first; ceil(log2 n) rounds.
Bytes per rank: N for each child (the root has ceil(log2 n) of them, half the ranks have none).
Best for small data, where rounds count and not bytes, and for two ranks.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.tree import children, parent


async def broadcast_binomial(channel: Channel, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    size = channel.size
    place = (channel.rank - root) % size
    if place:
        await channel.recv((parent(place) + root) % size, data)
    sends = [channel.send((child + root) % size, data) for child in reversed(children(place, size))]
    for sent in sends:
        await sent


async def broadcast_new(channel: Channel, root: int, data: memoryview | None) -> memoryview:
    """The bytes that ``root`` passes as ``data``, whose length the others need not know.

    ``data`` is ignored on other ranks; ``root`` gets back its own memory.
    """
    size = channel.size
    place = (channel.rank - root) % size
    if place:
        data = await channel.recv_new((parent(place) + root) % size)
    assert data is not None, "the root of a broadcast passes the data"
    sends = [channel.send((child + root) % size, data) for child in reversed(children(place, size))]
    for sent in sends:
        await sent
    return data
