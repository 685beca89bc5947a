"""All-reduce over shared memory in a row of ranks, for ranks that share cores: each adds its own once.

Steps: S = N / chunk. Rank 0 publishes its chunk. Each next rank publishes the sum of the previous
rank's chunk and its own. The last rank's sum is the result, and all others copy it. A rank begins a
few steps before it copies the result of one, so that there is work for every core. Bytes: a rank
writes N, reads N to reduce and N to copy. That is 2 N of copies and additions and two waits a step;
stripes (all_reduce_stripes.py) take 3 N (n - 1)/n + N/n and 2 (n - 1) waits. An element is reduced in
the order of ranks, and its result copied, so the bits are the same, and those of stripes.

A result is there after n steps, which ranks that have a core each would wait for: it is for those that
take turns on a core, and whose work is what counts. It is the chain of pipelined reductions and
broadcasts (J. Worringen, "Pipelining and overlapping for MPI collective operations", 2003) with memory
in place of messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.collectives.partition import segments_of
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_layout import ShmLayout

LONGEST = 512 << 10
"""Bytes of a chunk. What n ranks have in flight is to stay in the cache that the cores share."""

AHEAD = 2
"""Steps by which a rank is ahead of the results that it copies, where there is room for as many."""


def all_reduce_chain(shm: ShmLayout, data: memoryview, reduce: Reduction) -> Iterator[Step]:
    """Reduce ``data`` over all ranks, in place."""
    rank, last = shm.rank, shm.size - 1
    width = min(shm.chunk_bytes, LONGEST) // reduce.itemsize * reduce.itemsize
    steps = segments_of(len(data), width)
    # A rank's chunk is free when all have released the step so many before: none may be further ahead.
    ahead = min(AHEAD, shm.depth - 1, last - rank)
    for step in range(steps + ahead):
        if step < steps:
            part = data[step * width : (step + 1) * width]
            mine = shm.chunk(rank, step)[: len(part)]
            if rank == 0:
                yield WRITE, rank, step, [(mine, part)], ()
            else:
                before = shm.chunk(rank - 1, step)[: len(part)]
                yield READ, rank - 1, step, (), ()
                yield WRITE, rank, step, (), [reduce.of(before, part, mine)]
        ended = step - ahead
        if ended >= 0:
            part = data[ended * width : (ended + 1) * width]
            copy = [(part, shm.chunk(last, ended)[: len(part)])]
            if rank != last:
                yield READ, last, ended, copy, ()
            yield RELEASE, rank, ended + 1, copy if rank == last else (), ()
