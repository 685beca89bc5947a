"""Broadcast over shared memory: the root puts its data up, all others copy it.

In a slot: one step, and the root does not wait for the others. In chunks: S = N / chunk steps, the
root a few chunks ahead of the slowest. Bytes: the root writes N, each other rank reads N.
"""

from __future__ import annotations

from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of


async def broadcast_slots(board: Board, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it; at most a slot."""
    if board.rank == root:
        own = await board.slot(len(data))
        own[:] = data
        board.put_up(len(data))
    else:
        data[:] = await board.slot_of(root, len(data))


async def broadcast_chunks(board: Board, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    width = board.chunk_bytes
    await board.meet()
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        if board.rank == root:
            await board.free(step)
            board.chunk(root, step)[: len(part)] = part
            board.post(step)
        else:
            await board.posted(root, step)
            part[:] = board.chunk(root, step)[: len(part)]
        board.let_go(step + 1)
        await board.turn()
