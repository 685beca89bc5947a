"""All-to-all over shared memory: each rank publishes what it has for everyone, each copies what is
its own.

First a slot with the n lengths, since ranks do not know each other's; blocks that fit into the slot
behind them stand there, and that is all: one step. Else a chunk is cut into n parts, one for each
reader, and there are as many steps as the longest block of all needs. Bytes: a rank writes the
blocks of all others, and reads one block of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.layout import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step, carry_out
from aiodist.collectives.shm_context import ShmContext
from aiodist.collectives.slot_blocks import blocks_of, publish_blocks
from aiodist.copying import copy

_ALIGN = 64


async def all_to_all_shared(
    shm: ShmContext, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    rank = shm.rank
    fits = await publish_blocks(shm, inputs)
    own_longest = 0 if fits else max(map(len, inputs))
    longest = own_longest
    in_chunks = []
    for other in others_of(shm):
        theirs, block = await blocks_of(shm, other)
        shm.expect(other, theirs[rank], len(outputs[other]))
        if block is not None:
            copy(outputs[other], block)
        else:
            in_chunks.append(other)
            longest = max(longest, *theirs)
    if fits:
        copy(outputs[rank], inputs[rank])
    if longest:
        shm.begin_chunks()
        await carry_out(
            shm, all_to_all_chunks(shm, inputs, outputs, in_chunks, own_longest, longest)
        )


def all_to_all_chunks(
    shm: ShmContext,
    inputs: Sequence[memoryview],
    outputs: Sequence[memoryview],
    in_chunks: Sequence[int],
    own_longest: int,
    longest: int,
) -> Iterator[Step]:
    """What is left of it where some have longer blocks than a slot holds: ``in_chunks``, of the others.

    ``own_longest``: the longest block of this rank's, 0 where all of them went into its slot.
    ``longest``: of all that are left.
    """
    rank, size = shm.rank, shm.size
    width = shm.chunk_bytes // size // _ALIGN * _ALIGN
    mine = slice(rank * width, (rank + 1) * width)
    for step in range(segments_of(longest, width) + 1):
        piece = slice(step * width, (step + 1) * width)
        if piece.start < own_longest:
            chunk = shm.chunk(rank, step)
            copies = []
            for other in others_of(shm):
                part = inputs[other][piece]
                copies.append((chunk[other * width : other * width + len(part)], part))
            yield WRITE, rank, step, copies, ()
        if step:
            before = slice(piece.start - width, piece.start)
            for other in in_chunks:
                place = outputs[other][before]
                if len(place):
                    theirs = shm.chunk(other, step - 1)[mine][: len(place)]
                    yield READ, other, step - 1, [(place, theirs)], ()
            own = [(outputs[rank][before], inputs[rank][before])] if own_longest else ()
            yield RELEASE, rank, step, own, ()
