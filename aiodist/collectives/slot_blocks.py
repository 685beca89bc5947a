"""A slot with a block for each rank: the n lengths, then the blocks where all of them fit."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of


async def put_up_blocks(board: Board, blocks: Sequence[memoryview]) -> bool:
    """Put up the lengths of ``blocks``, one for each rank; whether the blocks stand there as well."""
    table = _table(board)
    lengths = [len(block) for block in blocks]
    starts = offsets_of([table.size, *lengths])[1:]
    fits = starts[-1] <= board.slot_bytes
    used = starts[-1] if fits else table.size
    own = await board.slot(used)
    table.pack_into(own, 0, *lengths)
    if fits:
        for start, block in zip(starts, blocks, strict=False):
            own[start : start + len(block)] = block
    board.put_up(used)
    return fits


def read_blocks(board: Board, slot: memoryview) -> tuple[tuple[int, ...], memoryview | None]:
    """Of another's slot: the lengths, and this rank's block, None where no block stands there."""
    table = _table(board)
    lengths = table.unpack_from(slot)
    starts = offsets_of([table.size, *lengths])[1:]
    if starts[-1] > board.slot_bytes:
        return lengths, None
    return lengths, slot[starts[board.rank] : starts[board.rank + 1]]


def _table(board: Board) -> struct.Struct:
    return struct.Struct(f"<{board.size}Q")
