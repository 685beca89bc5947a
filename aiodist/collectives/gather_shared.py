"""Gather and scatter over shared memory: the root copies what others put up, or the reverse.

Only the root knows all lengths. In a gather each rank puts its length up in a slot, with its data
where that fits; longer data follows in chunks, which only the root reads. In a scatter the root's slot has
the lengths of all blocks, and the blocks where all of them fit; else they follow in chunks that are cut
into n parts. Bytes: everything is written once and read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.slot_blocks import blocks_of, put_up_blocks

_ALIGN = 64


async def gather_shared(
    board: Board, root: int, data: memoryview, blocks: Sequence[memoryview] | None
) -> None:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""
    if board.rank == root:
        assert blocks is not None
        await _gather(board, data, blocks)
        return
    nbytes = len(data)
    board.let_go_all()
    own = await board.slot(min(nbytes, board.slot_bytes))
    if nbytes <= board.slot_bytes:
        own[:] = data
    board.put_up(nbytes)
    if nbytes <= board.slot_bytes:
        return
    await board.slot_of(root, 0)  # the root is in the same operation: it will read
    board.begin_chunks()
    width = board.chunk_bytes
    for step in range(segments_of(nbytes, width)):
        part = data[step * width : (step + 1) * width]
        await board.free(step)
        board.chunk(board.rank, step)[: len(part)] = part
        board.post(step)
        await board.turn()


async def _gather(board: Board, data: memoryview, blocks: Sequence[memoryview]) -> None:
    await board.slot(0)
    board.put_up(0)
    blocks[board.rank][:] = data
    width = board.chunk_bytes
    long = []
    for other in others_of(board):
        place = blocks[other]
        slot = await board.slot_of(other, len(place))
        if len(place) <= board.slot_bytes:
            place[:] = slot
        else:
            long.append(place)
    if not long:
        return
    board.begin_chunks()
    for step in range(max(segments_of(len(place), width) for place in long)):
        for other in others_of(board):
            place = blocks[other]
            part = place[step * width : (step + 1) * width]
            if len(place) > board.slot_bytes and len(part):
                await board.posted(other, step)
                part[:] = board.chunk(other, step)[: len(part)]
        board.let_go(step + 1)
        await board.turn()


async def scatter_shared(
    board: Board, root: int, blocks: Sequence[memoryview] | None, out: memoryview
) -> None:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""
    width = board.chunk_bytes // board.size // _ALIGN * _ALIGN
    if board.rank == root:
        assert blocks is not None
        await _scatter(board, blocks, width)
        out[:] = blocks[root]
        return
    lengths, block = await blocks_of(board, root)
    board.expect(root, lengths[board.rank], len(out))
    if block is not None:
        out[:] = block
        return
    board.begin_chunks()
    mine = board.rank * width
    for step in range(segments_of(max(lengths), width)):
        part = out[step * width : (step + 1) * width]
        if not len(part):
            break
        await board.posted(root, step)
        part[:] = board.chunk(root, step)[mine : mine + len(part)]
        board.let_go(step + 1)
        await board.turn()
    board.let_go_all()


async def _scatter(board: Board, blocks: Sequence[memoryview], width: int) -> None:
    if await put_up_blocks(board, blocks):
        return
    board.begin_chunks()
    others = others_of(board)
    for step in range(segments_of(max(len(blocks[other]) for other in others), width)):
        await board.free(step)
        chunk = board.chunk(board.rank, step)
        for other in others:
            part = blocks[other][step * width : (step + 1) * width]
            chunk[other * width : other * width + len(part)] = part
        board.post(step)
        await board.turn()
