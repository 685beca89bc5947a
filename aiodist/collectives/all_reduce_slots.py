"""All-reduce of small data over shared memory: all put up theirs, each adds up all.

Steps: one. Bytes: each rank writes N and reads (n - 1) * N. Everybody reduces in the order of
ranks, so the bits are the same everywhere. One step costs a few flags; for small data that is all
there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.barrier_slots import all_slots
from aiodist.collectives.board import Board
from aiodist.collectives.reduction import Reduction


async def all_reduce_slots(board: Board, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks, in place; at most a slot."""
    slots = await all_slots(board, data)
    reduce_in_order(reduce, slots, board.rank, data)


def reduce_in_order(
    reduce: Reduction, operands: Sequence[memoryview], own: int, out: memoryview
) -> None:
    """``out`` = the operands reduced from the first on. ``out`` holds operand ``own`` already."""
    if own == 0:
        reduce(out, operands[1])
    elif own == 1:
        reduce(out, operands[0], True)
    else:
        reduce.into(operands[0], operands[1], out)
    for operand in operands[2:]:
        reduce(out, operand)
