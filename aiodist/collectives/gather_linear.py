"""Gather straight to the root.

Steps: every rank sends its block to the root, which receives them all at once, in place.
Bytes per rank: its block, one message; the root sends nothing.
Best for large blocks and few ranks; the only one for uneven blocks, since the others need not know
the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.copying import copy


async def gather_linear(
    channel: Channel, root: int, data: memoryview, blocks: Sequence[memoryview] | None
) -> None:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data`` (its own too, unless it is the same).

    ``blocks`` is ignored on other ranks. Lengths may differ; each rank knows its own, the root all.
    """
    rank = channel.rank
    if rank != root:
        await channel.send(root, data)
        return
    assert blocks is not None, "the root of a gather passes the blocks"
    receives = [channel.recv(r, block) for r, block in enumerate(blocks) if r != root]
    if blocks[root] is not data:
        copy(blocks[root], data)
    for received in receives:
        await received


async def gather_new(channel: Channel, root: int, data: memoryview) -> list[memoryview] | None:
    """On ``root`` what each rank passes as ``data``, by rank, of unknown lengths; elsewhere None.

    The root's entry is its own memory.
    """
    rank = channel.rank
    if rank != root:
        await channel.send(root, data)
        return None
    receives = [channel.recv_new(r) if r != root else None for r in range(channel.size)]
    return [data if received is None else await received for received in receives]
