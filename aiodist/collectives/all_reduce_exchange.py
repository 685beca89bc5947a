"""All-reduce of two ranks over shared memory: each publishes whole chunks, and both add.

Steps: S = N / chunk. A rank publishes chunk i + 1 before it adds chunk i. So the copy of one rank and
the reduction of the other run at once. Bytes: each rank writes N, and reads N of the other. Both add in
the order of ranks, so the bits are the same. Halving the data (see all_reduce_stripes.py) would move
as many bytes, with twice the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.moves import LET_GO, PUT, TAKE, Move
from aiodist.collectives.reduction import Reduction


def all_reduce_exchange(board: Board, data: memoryview, reduce: Reduction) -> Iterator[Move]:
    """Reduce ``data`` over two ranks, in place."""
    rank, other = board.rank, 1 - board.rank
    width = board.chunk_bytes // reduce.itemsize * reduce.itemsize
    steps = segments_of(len(data), width)
    for step in range(steps + 1):
        if step < steps:
            part = data[step * width : (step + 1) * width]
            yield PUT, rank, step, [(board.chunk(rank, step)[: len(part)], part)], ()
        if step:
            part = data[(step - 1) * width : step * width]
            theirs = board.chunk(other, step - 1)[: len(part)]
            first, second = (part, theirs) if rank == 0 else (theirs, part)
            yield TAKE, other, step - 1, (), [reduce.of(first, second, part)]
            yield LET_GO, rank, step, (), ()
