"""Broadcast straight from the root.

Steps: the root sends the data to every other rank; one round.
Bytes: the root (n-1) N, the others none.
Best for small data on few ranks: each rank waits for one message. A rank that passes data on is
another wait, and to wake it takes longer than to send a message more.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel


async def broadcast_linear(channel: Channel, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    if channel.rank != root:
        await channel.recv(root, data)
        return
    for sent in [channel.send(rank, data) for rank in range(channel.size) if rank != root]:
        await sent
