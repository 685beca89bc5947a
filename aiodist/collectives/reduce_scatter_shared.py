"""Reduce-scatter over shared memory: all publish their blocks, each rank reduces its own one.

In slots: one step. In chunks: a chunk holds a piece of every block, so there are n * b / chunk
steps for blocks of b bytes. A rank publishes the next chunk before it reduces one. Bytes: a rank
writes the others' blocks and reads its own block of all others. Operands are taken in the order of
ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aiodist.collectives.all_reduce_slots import Last, ReducingSlots
from aiodist.collectives.partition import offsets_of, segments_of
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import (
    READ,
    RELEASE,
    Do,
    Step,
    operands_in_order,
    part_bytes,
    reductions_in_order,
    write_parts,
)
from aiodist.collectives.shm_exchange import all_others, others_of
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.views import BlocksView, DataView
from aiodist.copying import copy


class ReduceScatterSlots(ReducingSlots[tuple[BlocksView, DataView]]):
    """Reduce-scatter of blocks that fit into one slot together: the blocks, and a place for one."""

    __slots__ = ("_mine", "_starts")

    def __init__(
        self,
        rank: int,
        size: int,
        lengths: Sequence[int],
        reduce: Reduction,
        last: Last | None = None,
    ) -> None:
        self._starts = starts = offsets_of(lengths)
        self._mine = slice(starts[rank], starts[rank + 1])
        total = starts[-1]
        super().__init__(rank, size, total, all_others(rank, size, total), reduce, last)

    def fill(self, slot: memoryview, given: tuple[BlocksView, DataView]) -> None:
        for start, block in zip(self._starts, given[0].views, strict=False):
            copy(slot[start : start + len(block)], block)

    def finish(
        self, number: int, slots: Sequence[memoryview], given: tuple[BlocksView, DataView]
    ) -> bool:
        return self._reduce_into(number, slots, given[1])

    def _reductions(self, slots: Sequence[memoryview], place: memoryview) -> Iterable[Do]:
        return reductions_in_order(self._reduce, [slot[self._mine] for slot in slots], place)


def reduce_scatter_chunks(
    shm: ShmLayout, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> Iterator[Step]:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    rank, size, width = shm.rank, shm.size, part_bytes(shm, reduce.itemsize)
    steps = max(segments_of(len(block), width) for block in blocks)
    # The own piece goes up too where the first two operands are others': ``out`` may be its memory.
    shown = range(size) if rank > 1 else others_of(rank, size)
    order = operands_in_order(rank, size)
    for step in range(steps + 1):
        if step < steps:
            yield write_parts(shm, step, width, blocks, shown)
        if step:
            before = slice((step - 1) * width, step * width)
            place = out[before]
            mine = slice(rank * width, rank * width + len(place))
            operands = [shm.chunk(other, step - 1)[mine] for other in range(size)]
            if rank < 2:
                operands[rank] = blocks[rank][before]
            reductions = reductions_in_order(reduce, operands, place)
            for other, ready in order:
                yield READ, other, step - 1, (), reductions[ready]
            yield RELEASE, rank, step, (), ()
