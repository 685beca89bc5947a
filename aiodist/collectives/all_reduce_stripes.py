"""All-reduce over shared memory: each rank reduces its stripe of every chunk, all copy the others'.

Steps: S = N / chunk, two phases each. A chunk is cut into n stripes. Every rank puts up its chunk,
but for the stripe that is its own; reduces that stripe out of everybody's memory, in the order of
ranks; puts the result up in the chunk's place; and copies the other results out. The next
chunk is put up before the results of one are waited for. Bytes: a rank writes N, reads (n - 1)/n * N
to reduce and (n - 1)/n * N to copy. An element is reduced at one place, so the bits are the same.

It is Rabenseifner's all-reduce (reduce-scatter, then all-gather; 2004) with memory in place of
messages, in chunks that stay in the cache, as MPI libraries have it for ranks of one node (Graham
and Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of, segments_of
from aiodist.collectives.moves import Change, LetGo, Move, Put, Take, copy, takes_in_order
from aiodist.collectives.reduction import Reduction


def all_reduce_stripes(board: Board, data: memoryview, reduce: Reduction) -> Iterator[Move]:
    """Reduce ``data`` over all ranks, in place."""
    return _Stripes(board, data, reduce, range(board.size)).moves()


def reduce_stripes(board: Board, root: int, data: memoryview, reduce: Reduction) -> Iterator[Move]:
    """The same, and only ``root`` copies the results; the other ranks' data is only read."""
    return _Stripes(board, data, reduce, (root,)).moves()


class _Stripes:
    def __init__(
        self, board: Board, data: memoryview, reduce: Reduction, readers: Sequence[int]
    ) -> None:
        self._board = board
        self._data = data
        self._reduce = reduce
        self._reads = board.rank in readers
        itemsize = reduce.itemsize
        self._width = width = board.chunk_bytes // itemsize * itemsize
        self._steps = segments_of(len(data), width)
        self._whole = self._cuts(width)
        self._rest = self._cuts(len(data) - (self._steps - 1) * width)

    def _cuts(self, nbytes: int) -> list[slice]:
        """Where the stripes of a chunk of ``nbytes`` are."""
        length, longer = divmod(nbytes // self._reduce.itemsize, self._board.size)
        lengths = [
            (length + (stripe < longer)) * self._reduce.itemsize
            for stripe in range(self._board.size)
        ]
        starts = offsets_of(lengths)
        return [slice(start, end) for start, end in pairwise(starts)]

    def moves(self) -> Iterator[Move]:
        yield self._put_up(0)
        for step in range(self._steps):
            yield from self._reduce_own(step)
            if step + 1 < self._steps:
                yield self._put_up(step + 1)
            if self._reads:
                yield from self._copy_results(step)
            yield LetGo(step + 1)

    def _part(self, step: int) -> tuple[memoryview, list[slice]]:
        part = self._data[step * self._width : (step + 1) * self._width]
        return part, self._rest if step == self._steps - 1 else self._whole

    def _put_up(self, step: int) -> Put:
        rank = self._board.rank
        part, stripes = self._part(step)
        chunk = self._board.chunk(rank, step)
        before, after = slice(stripes[rank].start), slice(stripes[rank].stop, len(part))
        return Put(step, [copy(chunk[each], part[each]) for each in (before, after)])

    def _reduce_own(self, step: int) -> Iterator[Move]:
        board, reduce = self._board, self._reduce
        rank, size = board.rank, board.size
        part, stripes = self._part(step)
        stripe = stripes[rank]
        result = board.chunk(rank, step)[stripe]
        first, second, *others = (
            (part if other == rank else board.chunk(other, step))[stripe] for other in range(size)
        )
        reductions = [reduce.of(first, second, result)]
        reductions += [reduce.of(result, operand, result) for operand in others]
        yield from takes_in_order(rank, step, reductions)
        yield Change(step, [copy(part[stripe], result)] if self._reads else [])

    def _copy_results(self, step: int) -> Iterator[Move]:
        board = self._board
        part, stripes = self._part(step)
        for distance in range(1, board.size):
            other = (board.rank + distance) % board.size
            stripe = stripes[other]
            yield Take(other, step, 1, [copy(part[stripe], board.chunk(other, step)[stripe])])
