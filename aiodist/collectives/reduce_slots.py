"""Reduce of small data over shared memory: all published theirs, the root adds up.

Steps: one; only the root waits. Bytes: each rank but the root writes N, the root reads (n - 1) * N.
Large data goes by stripes: see all_reduce_stripes.py.
"""

from __future__ import annotations

from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.shm_context import ShmContext
from aiodist.copying import copy


async def reduce_slots(shm: ShmContext, root: int, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; at most a slot."""
    if shm.rank != root:
        own = await shm.slot(len(data))
        copy(own, data)
        shm.publish(len(data))
        return
    # The first operands may overwrite the root's own, unless it is one of them.
    own = data if root < 2 else memoryview(data.tobytes())
    operands = [
        own if rank == root else await shm.slot_of(rank, len(data)) for rank in range(shm.size)
    ]
    for reduction in in_order(reduce, operands, root, data):
        reduction()
