"""All-gather around a ring.

Steps: in each of n-1 rounds a rank sends to its right neighbour the block it got last (first its
own) and receives the next one from its left. Blocks land in place; nothing is copied.
Bytes per rank: all blocks but the right neighbour's, (n-1)/n of the total: the minimum.
Best for large blocks; also when they are uneven, since the neighbours are always both busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel


async def all_gather_ring(channel: Channel, blocks: Sequence[memoryview]) -> None:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already.

    All ranks know all lengths, which may differ.
    """
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    route = [blocks[(rank - step) % size] for step in range(size)]
    receives = [channel.recv(left, block) for block in route[1:]]
    sends = []
    for block, receive in zip(route, receives, strict=False):
        sends.append(channel.send(right, block))
        await receive
    for sent in sends:
        await sent


async def all_gather_new(channel: Channel, data: memoryview) -> list[memoryview]:
    """Return what each rank passes as ``data``, by rank. No rank knows the lengths beforehand.

    The same ring; this rank's entry is its own memory.
    """
    rank, size = channel.rank, channel.size
    left, right = (rank - 1) % size, (rank + 1) % size
    receives = [channel.recv_new(left) for _ in range(size - 1)]
    sends = []
    route = [data]
    for receive in receives:
        sends.append(channel.send(right, route[-1]))
        route.append(await receive)
    for sent in sends:
        await sent
    return [route[(rank - r) % size] for r in range(size)]
