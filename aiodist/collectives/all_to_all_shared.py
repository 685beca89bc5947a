"""All-to-all over shared memory: each rank puts up what it has for everyone, each copies what is its own.

First a slot with the n lengths, since ranks do not know each other's; blocks that fit into the slot
behind them stand there, and that is all: one step. Else a chunk is cut into n parts, one for each
reader, and there are as many steps as the longest block of all needs. Bytes: a rank writes the
blocks of all others, and reads one block of each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of, segments_of

_ALIGN = 64


async def all_to_all_shared(
    board: Board, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    rank, size = board.rank, board.size
    table = struct.Struct(f"<{size}Q")
    lengths = [len(block) for block in inputs]
    starts = offsets_of([table.size, *lengths])[1:]
    fits = starts[-1] <= board.slot_bytes
    used = starts[-1] if fits else table.size
    own = await board.slot(used)
    table.pack_into(own, 0, *lengths)
    if fits:
        for start, block in zip(starts, inputs, strict=False):
            own[start : start + len(block)] = block
    board.put_up(used)
    outputs[rank][:] = inputs[rank]

    longest = 0 if fits else max(lengths)
    in_chunks = []
    for other in others_of(board):
        slot = await board.slot_of(other)
        theirs = table.unpack_from(slot)
        board.expect(other, theirs[rank], len(outputs[other]))
        ends = offsets_of([table.size, *theirs])[1:]
        if ends[-1] <= board.slot_bytes:
            outputs[other][:] = slot[ends[rank] : ends[rank + 1]]
        else:
            in_chunks.append(other)
            longest = max(longest, *theirs)
    if not longest:
        return
    width = board.chunk_bytes // size // _ALIGN * _ALIGN
    board.begin_chunks()
    for step in range(segments_of(longest, width) + 1):
        piece = slice(step * width, (step + 1) * width)
        if not fits and piece.start < max(lengths):
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
