"""All-reduce of two ranks over shared memory: each chunk is put up whole, and both add.

Steps: S = N / chunk; chunk i + 1 is put up before chunk i is added, so the copy of one rank and the
reduction of the other run at once. Bytes: each rank writes N, and reads N of the other. Both add in
the order of ranks, so the bits are the same. Halving the data (see all_reduce_stripes.py) would move
as many bytes, with twice the steps.
"""

from __future__ import annotations

from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.reduction import Reduction


async def all_reduce_exchange(board: Board, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over two ranks, in place."""
    itemsize, other_first = reduce.itemsize, board.rank == 1
    width = board.chunk_bytes // itemsize * itemsize
    steps = segments_of(len(data), width)
    other = 1 - board.rank
    await board.meet()
    for step in range(steps + 1):
        if step < steps:
            part = data[step * width : (step + 1) * width]
            await board.free(step)
            board.chunk(board.rank, step)[: len(part)] = part
            board.post(step)
        if step:
            part = data[(step - 1) * width : step * width]
            await board.posted(other, step - 1)
            reduce(part, board.chunk(other, step - 1)[: len(part)], other_first)
            board.let_go(step)
        await board.turn()
