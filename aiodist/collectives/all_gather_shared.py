"""All-gather over shared memory: each rank puts its block up, all others copy it.

In slots: one step. In chunks: as many steps as the longest block has chunks. Bytes: a rank writes
its own block and reads all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.partition import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_exchange import Exchange, others_of
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.views import BlocksView, DataView
from aiodist.copying import copy


class AllGatherSlots(Exchange[tuple[DataView, BlocksView]]):
    """All-gather of blocks that fit into a slot each: the own block, and a place for each rank's."""

    __slots__ = ()

    def __init__(self, rank: int, size: int, lengths: Sequence[int]) -> None:
        reads = [(other, lengths[other]) for other in others_of(rank, size)]
        super().__init__(rank, size, lengths[rank], reads)

    def fill(self, slot: memoryview, given: tuple[DataView, BlocksView]) -> None:
        copy(slot[: self.nbytes], given[0].view)

    def finish(
        self, number: int, slots: Sequence[memoryview], given: tuple[DataView, BlocksView]
    ) -> bool:
        places = given[1].views
        if given[0].view is not places[self.rank]:
            # From the slot, because the own block's memory may lie over several places.
            copy(places[self.rank], slots[self.rank][: self.nbytes])
        for rank, length in self.reads:
            copy(places[rank], slots[rank][:length])
        return False


def all_gather_chunks(
    shm: ShmLayout, blocks: Sequence[memoryview], readers: Sequence[int] | None = None
) -> Iterator[Step]:
    """Fill every ``blocks[r]`` with rank r's block, on ``readers``, or everywhere where None."""
    rank = shm.rank
    others = others_of(rank, shm.size) if readers is None or rank in readers else []
    width = shm.chunk_bytes
    steps = segments_of(max(map(len, blocks)), width)
    for step in range(steps + 1):
        if step < steps:
            part = blocks[rank][step * width : (step + 1) * width]
            yield WRITE, rank, step, [(shm.chunk(rank, step)[: len(part)], part)], ()
        if step:
            for other in others:
                part = blocks[other][(step - 1) * width : step * width]
                chunk = shm.chunk(other, step - 1)[: len(part)]
                yield READ, other, step - 1, [(part, chunk)], ()
            yield RELEASE, rank, step, (), ()
