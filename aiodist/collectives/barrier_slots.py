"""Barrier over shared memory: each rank publishes a flag and waits for all others'.

Steps: one. Bytes: none; n flags, each read by n - 1 ranks. A central counter would need
fewer flags, but also an atomic increment, which Python lacks. A flag for each rank needs none
(Mellor-Crummey and Scott, "Algorithms for scalable synchronization on shared-memory
multiprocessors", 1991).
"""

from __future__ import annotations

from aiodist.collectives.shm_exchange import Exchange, all_others


def barrier_slots(rank: int, size: int) -> Exchange[None]:
    """Return the exchange that ends when all ranks have entered."""
    return Exchange(rank, size, 0, all_others(rank, size, 0))
