"""Broadcast over shared memory: the root publishes its data, all others copy it.

In a slot: one step, and the root does not wait for the others. In chunks: S = N / chunk steps, the
root a few chunks ahead of the slowest rank, for which it waits then. Bytes: the root writes N,
each other rank reads N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.layout import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_context import ShmContext
from aiodist.copying import copy


async def broadcast_slots(shm: ShmContext, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it; at most a slot."""
    if shm.rank == root:
        own = await shm.slot(len(data))
        copy(own, data)
        shm.publish(len(data))
    else:
        copy(data, await shm.slot_of(root, len(data)))


def sources_of_broadcast(rank: int, root: int) -> Sequence[int]:
    """Whose data ``rank`` copies: all that it has to meet."""
    return () if rank == root else (root,)


def broadcast_chunks(shm: ShmContext, root: int, data: memoryview) -> Iterator[Step]:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, width = shm.rank, shm.chunk_bytes
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        chunk = shm.chunk(root, step)[: len(part)]
        if rank == root:
            yield WRITE, rank, step, [(chunk, part)], ()
        else:
            yield READ, root, step, [(part, chunk)], ()
        yield RELEASE, rank, step + 1, (), ()
