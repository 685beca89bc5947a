"""Reduce along a chain of ranks in chunks (a pipeline; "pipeline" in Open MPI's tuned module).

Steps: root+n-1, ..., root+1, root form a chain. Each rank receives partial results chunk after
chunk from the one above it, adds its part, and passes them down while the next chunk travels.
Bytes per rank: N, in ceil(N / chunk) messages; the root sends nothing.
Time is that of N bytes and n-2 chunks more: best for large data while the chain is short against
the number of chunks.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import CHUNK, WINDOW, cut, segments_of, slots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.completion import Pending


async def reduce_chain(
    channel: Channel,
    root: int,
    data: memoryview,
    reduce: Reduction,
    scratch: Scratch,
    chunk: int = CHUNK,
) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read.

    Scratch: at most 2 * WINDOW chunks.
    """
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    place = (rank - root) % size
    above, below = (rank + 1) % size, (rank - 1) % size
    pieces = cut(data, reduce.itemsize, segments_of(len(data), chunk))
    sends: list[Pending[None]] = []
    if place == size - 1:
        for i, piece in enumerate(pieces):
            if i >= WINDOW:
                await sends[i - WINDOW]
            sends.append(channel.send(below, piece))
    else:
        stages = slots(scratch, min(2 * WINDOW, len(pieces)), len(pieces[0]))
        receives: list[Pending[None]] = []
        for i, piece in enumerate(pieces):
            for j in range(len(receives), min(i + WINDOW, len(pieces))):
                if place and j >= len(stages):
                    await sends[j - len(stages)]  # it read this stage
                stage = stages[j % len(stages)]
                receives.append(channel.recv(above, stage[: len(pieces[j])]))
            await receives[i]
            partial = stages[i % len(stages)][: len(piece)]
            if place:
                reduce(partial, piece, True)
                sends.append(channel.send(below, partial))
            else:
                reduce(piece, partial)
    for sent in sends:
        await sent
