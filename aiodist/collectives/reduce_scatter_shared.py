"""Reduce-scatter over shared memory: all publish their blocks, each rank reduces its own one.

In slots: one step. In chunks: a chunk holds a piece of every block, so there are n * b / chunk
steps for blocks of b bytes. A rank publishes the next chunk before it reduces one. Bytes: a rank
writes the others' blocks and reads its own block of all others. Operands are taken in the order of
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.layout import offsets_of, segments_of
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step, operands_in_order
from aiodist.collectives.shm_context import ShmContext


async def reduce_scatter_slots(
    shm: ShmContext, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``; all blocks together at most a slot."""
    starts = offsets_of([len(block) for block in blocks])
    own = await shm.slot(starts[-1])
    for start, block in zip(starts, blocks, strict=False):
        own[start : start + len(block)] = block
    shm.publish(starts[-1])
    rank = shm.rank
    mine = slice(starts[rank], starts[rank + 1])
    operands = [
        (own if other == rank else await shm.slot_of(other, starts[-1]))[mine]
        for other in range(shm.size)
    ]
    for reduction in in_order(reduce, operands, -1, out):
        reduction()


def reduce_scatter_chunks(
    shm: ShmContext, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> Iterator[Step]:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    rank, size, itemsize = shm.rank, shm.size, reduce.itemsize
    width = shm.chunk_bytes // size // itemsize * itemsize
    steps = max(segments_of(len(block), width) for block in blocks)
    # The own piece goes up too where the first two operands are others': ``out`` may be its memory.
    shown = range(size) if rank > 1 else others_of(shm)
    order = operands_in_order(rank, size)
    for step in range(steps + 1):
        if step < steps:
            chunk = shm.chunk(rank, step)
            copies = []
            for other in shown:
                piece = blocks[other][step * width : (step + 1) * width]
                copies.append((chunk[other * width : other * width + len(piece)], piece))
            yield WRITE, rank, step, copies, ()
        if step:
            before = slice((step - 1) * width, step * width)
            place = out[before]
            mine = slice(rank * width, rank * width + len(place))
            first, second, *others = (
                blocks[rank][before]
                if other == rank and rank < 2
                else shm.chunk(other, step - 1)[mine]
                for other in range(size)
            )
            reductions = [reduce.of(first, second, place)]
            reductions += [reduce.of(place, operand, place) for operand in others]
            for other, ready in order:
                yield READ, other, step - 1, (), reductions[ready]
            yield RELEASE, rank, step, (), ()
