"""All-to-all over shared memory: each rank copies what the others have for it.

First a slot with the n lengths, since ranks do not know each other's; blocks that fit into the slot
behind them stand there, and that is all: one step. Else their addresses stand there, and where
ranks can read each other's tensors, each reads its blocks where they are. Where they cannot, a chunk is
cut into n parts, one for each reader, and there are as many steps as the longest block of all needs.
Bytes: a rank reads one block of each; in chunks it writes the blocks of all others as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board, OpenBoard
from aiodist.collectives.layout import segments_of
from aiodist.collectives.slot_blocks import addresses_in, fit, put_up_blocks, read_blocks

_ALIGN = 64

READ_FROM = 16 << 20
"""Bytes of the longest block from which on blocks are read where they are.

Of 25 MiB with four ranks on two cores this took 0.52 to 0.77 of the time in chunks, of 50 MiB with two
ranks 0.52 to 1.0, of 4 and 8 MiB 0.8 to 1.3: several runs A B A B, on a machine that was not idle.
"""


async def all_to_all_shared(
    board: OpenBoard, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    rank, size = board.rank, board.size
    shown: dict[int, Sequence[int]] = {}  # by rank: where the blocks are that do not fit
    longest = own_longest = 0
    if not fit(board, inputs):
        shown[rank] = [board.address(block) for block in inputs]
        longest = own_longest = max(map(len, inputs))
    await put_up_blocks(board, inputs, shown.get(rank, ()))
    outputs[rank][:] = inputs[rank]

    for other in others_of(board):
        slot = await board.slot_of(other)
        theirs, block = read_blocks(slot, rank, size, board.slot_bytes)
        board.expect(other, theirs[rank], len(outputs[other]))
        if block is not None:
            outputs[other][:] = block
        else:
            shown[other] = addresses_in(slot, size)
            longest = max(longest, *theirs)
    if not longest:
        return
    board.begin_chunks()
    readable = longest >= READ_FROM and board.all_read and all(map(all, shown.values()))
    shown.pop(rank, None)
    if readable:
        await _read(board, {other: at[rank] for other, at in shown.items()}, outputs)
    else:
        await _by_chunks(board, inputs, outputs, list(shown), own_longest, longest)


async def _read(board: OpenBoard, starts: Mapping[int, int], outputs: Sequence[memoryview]) -> None:
    """Fill ``outputs[r]`` from ``starts[r]``, where rank r has it."""
    width = board.chunk_bytes
    for other, start in starts.items():
        place = outputs[other]
        for offset in range(0, len(place), width):
            await board.pull(other, start + offset, place[offset : offset + width])
            await board.turn()
    await board.all_let_go()


async def _by_chunks(
    board: Board,
    inputs: Sequence[memoryview],
    outputs: Sequence[memoryview],
    in_chunks: Sequence[int],
    own_longest: int,
    longest: int,
) -> None:
    """Fill ``outputs[r]`` for every r of ``in_chunks``, whose blocks follow in chunks.

    ``own_longest``, ``longest``: bytes of the longest block of this rank, and of all, in chunks.
    """
    rank = board.rank
    width = board.chunk_bytes // board.size // _ALIGN * _ALIGN
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
