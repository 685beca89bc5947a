"""Scatter straight from the root.

Steps: the root sends every rank its block.
Bytes per rank: the root all blocks but its own in n-1 messages, the others none.
Best for large blocks and few ranks; the only one for uneven blocks, since the others need not know
the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.copying import copy


async def scatter_linear(
    channel: Channel, root: int, blocks: Sequence[memoryview] | None, out: memoryview
) -> None:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]`` (its own too, unless it is the same).

    ``blocks`` is ignored on other ranks. Lengths may differ; each rank knows its own, the root all.
    """
    if channel.rank != root:
        await channel.recv(root, out)
        return
    assert blocks is not None, "the root of a scatter passes the blocks"
    sends = [channel.send(r, block) for r, block in enumerate(blocks) if r != root]
    if blocks[root] is not out:
        copy(out, blocks[root])
    for sent in sends:
        await sent


async def scatter_new(
    channel: Channel, root: int, blocks: Sequence[memoryview] | None
) -> memoryview:
    """This rank's entry of ``root``'s ``blocks``, of a length that only the root knows.

    ``blocks`` is ignored on other ranks; the root gets back its own memory.
    """
    if channel.rank != root:
        return await channel.recv_new(root)
    assert blocks is not None, "the root of a scatter passes the blocks"
    sends = [channel.send(r, block) for r, block in enumerate(blocks) if r != root]
    for sent in sends:
        await sent
    return blocks[root]
