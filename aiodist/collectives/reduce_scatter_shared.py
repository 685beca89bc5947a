"""Reduce-scatter over shared memory: all put their blocks up, each reduces the one that is its own.

In slots: one step. In chunks: a chunk holds a piece of every block, so there are n * b / chunk
steps for blocks of b bytes; the next chunk is put up before one is reduced. Bytes: a rank writes the
others' blocks and reads its own block of all others. Operands are taken in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of, segments_of
from aiodist.collectives.reduction import Reduction


async def reduce_scatter_slots(
    board: Board, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``; all blocks together at most a slot."""
    starts = offsets_of([len(block) for block in blocks])
    own = await board.slot(starts[-1])
    for start, block in zip(starts, blocks, strict=False):
        own[start : start + len(block)] = block
    board.put_up(starts[-1])
    rank = board.rank
    mine = slice(starts[rank], starts[rank + 1])
    operands = [
        (own if other == rank else await board.slot_of(other, starts[-1]))[mine]
        for other in range(board.size)
    ]
    reduce.into(operands[0], operands[1], out)
    for operand in operands[2:]:
        reduce(out, operand)


async def reduce_scatter_chunks(
    board: Board, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    rank, size, itemsize = board.rank, board.size, reduce.itemsize
    width = board.chunk_bytes // size // itemsize * itemsize
    steps = max(segments_of(len(block), width) for block in blocks)
    # The own piece goes up too where the first two operands are others': ``out`` may be its memory.
    shown = range(size) if rank > 1 else others_of(board)
    await board.meet()
    for step in range(steps + 1):
        if step < steps:
            await board.free(step)
            chunk = board.chunk(rank, step)
            for other in shown:
                piece = blocks[other][step * width : (step + 1) * width]
                chunk[other * width : other * width + len(piece)] = piece
            board.post(step)
        if step:
            place = out[(step - 1) * width : step * width]
            operands = []
            for other in range(size):
                if other != rank:
                    await board.posted(other, step - 1)
                elif rank < 2:
                    operands.append(blocks[rank][(step - 1) * width : step * width])
                    continue
                chunk = board.chunk(other, step - 1)
                operands.append(chunk[rank * width : rank * width + len(place)])
            reduce.into(operands[0], operands[1], place)
            for operand in operands[2:]:
                reduce(place, operand)
            board.let_go(step)
        await board.turn()
