"""All-gather over shared memory: each rank puts its block up, all others copy it.

In slots: one step. In chunks: as many steps as the longest block has chunks. Bytes: a rank writes
its own block and reads all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.layout import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_context import ShmContext
from aiodist.copying import copy


async def all_gather_slots(shm: ShmContext, blocks: Sequence[memoryview]) -> None:
    """Fill every ``blocks[r]`` with rank r's block, each at most a slot."""
    mine = blocks[shm.rank]
    own = await shm.slot(len(mine))
    copy(own, mine)
    shm.publish(len(mine))
    for other in others_of(shm):
        copy(blocks[other], await shm.slot_of(other, len(blocks[other])))


def all_gather_chunks(
    shm: ShmContext, blocks: Sequence[memoryview], readers: Sequence[int] | None = None
) -> Iterator[Step]:
    """Fill every ``blocks[r]`` with rank r's block, on ``readers``, or everywhere where None."""
    rank = shm.rank
    others = others_of(shm) if readers is None or rank in readers else []
    width = shm.chunk_bytes
    steps = max(segments_of(len(block), width) for block in blocks)
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
