"""Barrier over shared memory: each rank publishes a flag and waits for all others'.

Steps: one. Bytes: none; n flags, each read by n - 1 ranks. A central counter would need
fewer flags, but also an atomic increment, which Python lacks. A flag for each rank needs none
(Mellor-Crummey and Scott, "Algorithms for scalable synchronization on shared-memory
multiprocessors", 1991).
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.shm_context import ShmContext
from aiodist.copying import copy


async def barrier_slots(shm: ShmContext) -> None:
    """Return when all ranks have entered."""
    await all_slots(shm, memoryview(b""))


async def all_slots(shm: ShmContext, data: memoryview) -> Sequence[memoryview]:
    """Put up ``data``, as long on all ranks; wait for all others'. The slots by rank."""
    rank, nbytes = shm.rank, len(data)
    own = await shm.slot(nbytes)
    copy(own, data)
    shm.publish(nbytes)
    return [own if other == rank else await shm.slot_of(other, nbytes) for other in range(shm.size)]


def others_of(shm: ShmContext) -> list[int]:
    """All ranks but this one, the next one first, so that not all begin with the same."""
    rank, size = shm.rank, shm.size
    return [(rank + distance) % size for distance in range(1, size)]
