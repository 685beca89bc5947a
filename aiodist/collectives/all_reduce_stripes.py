"""All-reduce over shared memory: each rank reduces its stripe of every chunk, all copy the others'.

Steps: S = N / chunk, two phases each. A chunk is cut into n stripes. Every rank publishes its chunk
without its own stripe. It reduces that stripe out of all ranks' memory, in the order of ranks, and
publishes the result in the chunk's place. Then it copies the other results out. A rank publishes the
next chunk before it waits for the results of one. Bytes: a rank writes N, reads (n - 1)/n * N
to reduce and (n - 1)/n * N to copy. An element is reduced at one place, so the bits are the same.

It is Rabenseifner's all-reduce (reduce-scatter, then all-gather; 2004) with memory in place of
messages, in chunks that stay in the cache. MPI libraries do the same for ranks of one node (Graham
and Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of, segments_of
from aiodist.collectives.moves import (
    CHANGE,
    LET_GO,
    PUT,
    TAKE,
    TAKE_CHANGED,
    Do,
    Move,
    operands_in_order,
)
from aiodist.collectives.reduction import Reduction


def all_reduce_stripes(board: Board, data: memoryview, reduce: Reduction) -> Iterator[Move]:
    """Reduce ``data`` over all ranks, in place."""
    return _Stripes(board, data, reduce, range(board.size)).moves()


def reduce_stripes(board: Board, root: int, data: memoryview, reduce: Reduction) -> Iterator[Move]:
    """The same, and only ``root`` copies the results; the other ranks' data is only read."""
    return _Stripes(board, data, reduce, (root,)).moves()


_Views = tuple[memoryview, Sequence[slice], Sequence[memoryview]]
"""Of one step: this rank's data, its stripes, and the chunks of all ranks."""


class _Stripes:
    def __init__(
        self, board: Board, data: memoryview, reduce: Reduction, readers: Sequence[int]
    ) -> None:
        self._board = board
        self._data = data
        self._reduce = reduce
        self._reads = board.rank in readers
        self._order = operands_in_order(board.rank, board.size)
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
        rank, reads = self._board.rank, self._reads
        others = [(rank + distance) % self._board.size for distance in range(1, self._board.size)]
        step, now = 0, self._views(0)
        yield self._put_up(0, now)
        while True:
            part, stripes, chunks = now
            stripe = stripes[rank]
            mine, result = part[stripe], chunks[rank][stripe]
            reductions = self._reductions(mine, chunks, stripe, result)
            for other, ready in self._order:
                yield TAKE, other, step, (), reductions[ready]
            yield CHANGE, rank, step, [(mine, result)] if reads else (), ()
            if step + 1 < self._steps:
                now = self._views(step + 1)
                yield self._put_up(step + 1, now)
            if reads:
                for other in others:
                    stripe = stripes[other]
                    yield TAKE_CHANGED, other, step, [(part[stripe], chunks[other][stripe])], ()
            step += 1
            yield LET_GO, rank, step, (), ()
            if step == self._steps:
                return

    def _views(self, step: int) -> _Views:
        board = self._board
        part = self._data[step * self._width : (step + 1) * self._width]
        stripes = self._rest if step == self._steps - 1 else self._whole
        return part, stripes, [board.chunk(rank, step) for rank in range(board.size)]

    def _put_up(self, step: int, views: _Views) -> Move:
        part, stripes, chunks = views
        own, chunk = stripes[self._board.rank], chunks[self._board.rank]
        around = slice(own.start), slice(own.stop, len(part))
        return PUT, self._board.rank, step, [(chunk[each], part[each]) for each in around], ()

    def _reductions(
        self, mine: memoryview, chunks: Sequence[memoryview], stripe: slice, result: memoryview
    ) -> Sequence[Do]:
        of, rank = self._reduce.of, self._board.rank
        first, second, *others = (
            mine if other == rank else chunk[stripe] for other, chunk in enumerate(chunks)
        )
        return [of(first, second, result), *(of(result, operand, result) for operand in others)]
