"""All-to-all over shared memory: each rank puts up what it has for everyone, each copies what is its own.

First a slot with the n lengths, since ranks do not know each other's; blocks that fit into the slot
behind them stand there, and that is all: one step. Else a chunk is cut into n parts, one for each
reader, and there are as many steps as the longest block of all needs. Bytes: a rank writes the
blocks of all others, and reads one block of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.slot_blocks import blocks_of, put_up_blocks

_ALIGN = 64


async def all_to_all_shared(
    board: Board, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    rank, size = board.rank, board.size
    fits = await put_up_blocks(board, inputs)
    outputs[rank][:] = inputs[rank]

    own_longest = 0 if fits else max(map(len, inputs))
    longest = own_longest
    in_chunks = []
    for other in others_of(board):
        theirs, block = await blocks_of(board, other)
        board.expect(other, theirs[rank], len(outputs[other]))
        if block is not None:
            outputs[other][:] = block
        else:
            in_chunks.append(other)
            longest = max(longest, *theirs)
    if not longest:
        return
    width = board.chunk_bytes // size // _ALIGN * _ALIGN
    board.begin_chunks()
    for step in range(segments_of(longest, width) + 1):
        piece = slice(step * width, (step + 1) * width)
        if piece.start < own_longest:
            await board.free(step)
            chunk = board.chunk(rank, step)
            for other in others_of(board):
                part = inputs[other][piece]
                chunk[other * width : other * width + len(part)] = part
            board.post(step)
        if step:
            before = slice(piece.start - width, piece.start)
            for other in in_chunks:
                place = outputs[other][before]
                if len(place):
                    await board.posted(other, step - 1)
                    place[:] = board.chunk(other, step - 1)[
                        rank * width : rank * width + len(place)
                    ]
            board.let_go(step)
        await board.turn()
