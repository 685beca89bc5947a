"""All-reduce in place of the ranks that share a host: each reads the others' tensors where they are.

Steps: S = N / n / piece. The data is cut into n stripes. Each rank reduces its own stripe, piece by
piece, out of all ranks' tensors, in the order of ranks, and then reads the other stripes' results where
their owners have them. Bytes: a rank reads (n - 1)/n * N to reduce, and (n - 1)/n * N of results;
nothing is put up first, as it is in chunks (all_reduce_stripes.py), so that N bytes a rank are written
once less. An element is reduced at one place, so the bits are the same, and the same as in chunks.

Rabenseifner's all-reduce (reduce-scatter, then all-gather; 2004), with one copy between processes as
MPI libraries have it (H.-W. Jin, S. Sur, L. Chai, D. K. Panda: LiMIC: support for high-performance MPI
intra-node communication on Linux cluster, 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import OpenBoard
from aiodist.collectives.layout import lengths_of_cut, offsets_of, segments_of
from aiodist.collectives.reduction import Reduction


async def all_reduce_direct(board: OpenBoard, data: memoryview, reduce: Reduction) -> bool:
    """Reduce ``data`` over all ranks, in place. False, and nothing done, where not all can be read."""
    shown = await board.show([data])
    if shown is None:
        return False
    rank, size, itemsize = board.rank, board.size, reduce.itemsize
    starts = offsets_of(lengths_of_cut(len(data), itemsize, size))
    stripes = [data[start:end] for start, end in pairwise(starts)]
    width = board.chunk_bytes // itemsize * itemsize
    steps = segments_of(len(stripes[0]), width)
    mine = [base + starts[rank] for (base,) in shown]
    operands = Operands(board, mine, reduce)
    await operands.begin()
    for step in range(steps):
        part = stripes[rank][step * width : (step + 1) * width]
        await operands.reduce(step * width, part, part)
        board.post(step)
        await board.turn()
    for other in others_of(board):
        start = shown[other][0] + starts[other]
        for step in range(steps):
            offset = step * width
            await board.posted(other, step)
            await board.pull(other, start + offset, stripes[other][offset : offset + width])
            await board.turn()
    await board.all_let_go()
    return True


class Operands:
    """What all ranks have for this one to reduce, read where it is."""

    def __init__(self, board: OpenBoard, at: Sequence[int], reduce: Reduction) -> None:
        """``at``: where it begins, by rank; this rank's own number there is not used."""
        self._board = board
        self._at = at
        self._reduce = reduce
        # This rank's own chunks, which nobody reads meanwhile.
        self._first = board.chunk(board.rank, 0)
        self._next = board.chunk(board.rank, 1)

    async def begin(self) -> None:
        """When nobody reads this rank's chunks for an operation before."""
        await self._board.free(0)
        await self._board.free(1)

    async def reduce(self, offset: int, own: memoryview, out: memoryview) -> None:
        """Reduce a piece that is ``offset`` bytes from the beginning into ``out``.

        ``own`` is this rank's operand. ``out`` may be exactly that memory. At most a chunk long.
        """
        board = self._board
        acc = memoryview(b"")
        for other in range(board.size if len(own) else 0):
            operand = own
            if other != board.rank:
                operand = (self._next if other else self._first)[: len(own)]
                await board.pull(other, self._at[other] + offset, operand)
            if other == 0:
                acc = operand
                continue
            # Up to this rank's own operand the sum is in the first one's place.
            into = out if other >= board.rank else acc
            self._reduce.into(acc, operand, into)
            acc = into
