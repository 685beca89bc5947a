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

from aiodist.collectives.partition import lengths_of_cut, offsets_of, segments_of
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import (
    READ,
    READ_REPOSTED,
    RELEASE,
    REPOST,
    WRITE,
    Step,
    operands_in_order,
    reductions_in_order,
)
from aiodist.collectives.shm_exchange import others_of
from aiodist.collectives.shm_layout import ShmLayout


def all_reduce_stripes(shm: ShmLayout, data: memoryview, reduce: Reduction) -> Iterator[Step]:
    """Reduce ``data`` over all ranks, in place."""
    return _Stripes(shm, data, reduce, range(shm.size)).schedule()


def reduce_stripes(
    shm: ShmLayout, root: int, data: memoryview, reduce: Reduction
) -> Iterator[Step]:
    """The same, and only ``root`` copies the results; the other ranks' data is only read."""
    return _Stripes(shm, data, reduce, (root,)).schedule()


_Views = tuple[memoryview, Sequence[slice], Sequence[memoryview]]
"""Of one step: this rank's data, its stripes, and the chunks of all ranks."""


class _Stripes:
    def __init__(
        self, shm: ShmLayout, data: memoryview, reduce: Reduction, readers: Sequence[int]
    ) -> None:
        self._shm = shm
        self._data = data
        self._reduce = reduce
        self._reads = shm.rank in readers
        self._order = operands_in_order(shm.rank, shm.size)
        itemsize = reduce.itemsize
        self._width = width = shm.chunk_bytes // itemsize * itemsize
        self._steps = segments_of(len(data), width)
        self._whole = self._cuts(width)
        self._rest = self._cuts(len(data) - (self._steps - 1) * width)

    def _cuts(self, nbytes: int) -> list[slice]:
        """Where the stripes of a chunk of ``nbytes`` are."""
        lengths = lengths_of_cut(nbytes, self._reduce.itemsize, self._shm.size)
        return [slice(start, end) for start, end in pairwise(offsets_of(lengths))]

    def schedule(self) -> Iterator[Step]:
        rank, reads = self._shm.rank, self._reads
        others = others_of(rank, self._shm.size)
        step, now = 0, self._views(0)
        yield self._publish(0, now)
        while True:
            part, stripes, chunks = now
            stripe = stripes[rank]
            mine, result = part[stripe], chunks[rank][stripe]
            operands = [chunk[stripe] for chunk in chunks]
            operands[rank] = mine
            reductions = reductions_in_order(self._reduce, operands, result)
            for other, ready in self._order:
                yield READ, other, step, (), reductions[ready]
            yield REPOST, rank, step, [(mine, result)] if reads else (), ()
            if step + 1 < self._steps:
                now = self._views(step + 1)
                yield self._publish(step + 1, now)
            if reads:
                for other in others:
                    stripe = stripes[other]
                    yield READ_REPOSTED, other, step, [(part[stripe], chunks[other][stripe])], ()
            step += 1
            yield RELEASE, rank, step, (), ()
            if step == self._steps:
                return

    def _views(self, step: int) -> _Views:
        shm = self._shm
        part = self._data[step * self._width : (step + 1) * self._width]
        stripes = self._rest if step == self._steps - 1 else self._whole
        return part, stripes, [shm.chunk(rank, step) for rank in range(shm.size)]

    def _publish(self, step: int, views: _Views) -> Step:
        part, stripes, chunks = views
        own, chunk = stripes[self._shm.rank], chunks[self._shm.rank]
        around = slice(own.start), slice(own.stop, len(part))
        return WRITE, self._shm.rank, step, [(chunk[each], part[each]) for each in around], ()
