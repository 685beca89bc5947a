"""All-reduce of two ranks over shared memory: each publishes whole chunks, and both add.

Steps: S = N / chunk. A rank publishes chunk i + 1 before it adds chunk i. So the copy of one rank and
the reduction of the other run at once. Bytes: each rank writes N, and reads N of the other. Both add in
the order of ranks, so the bits are the same. Halving the data (see all_reduce_stripes.py) would move
as many bytes, with twice the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.collectives.partition import segments_of
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_layout import ShmLayout


def all_reduce_exchange(shm: ShmLayout, data: memoryview, reduce: Reduction) -> Iterator[Step]:
    """Reduce ``data`` over two ranks, in place."""
    rank, other = shm.rank, 1 - shm.rank
    width = shm.chunk_bytes // reduce.itemsize * reduce.itemsize
    steps = segments_of(len(data), width)
    for step in range(steps + 1):
        if step < steps:
            part = data[step * width : (step + 1) * width]
            yield WRITE, rank, step, [(shm.chunk(rank, step)[: len(part)], part)], ()
        if step:
            part = data[(step - 1) * width : step * width]
            theirs = shm.chunk(other, step - 1)[: len(part)]
            first, second = (part, theirs) if rank == 0 else (theirs, part)
            yield READ, other, step - 1, (), [reduce.of(first, second, part)]
            yield RELEASE, rank, step, (), ()
