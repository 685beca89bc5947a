"""All-reduce of small data over shared memory: all publish theirs, each adds up all.

Steps: one. Bytes: each rank writes N and reads (n - 1) * N. Every rank reduces in the order of
ranks, so the bits are the same everywhere. One step costs a few flags; for small data that is all
there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.barrier_slots import all_slots
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.schedule import Do
from aiodist.collectives.shm_context import ShmContext


async def all_reduce_slots(shm: ShmContext, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks, in place; at most a slot."""
    slots = await all_slots(shm, data)
    for reduction in in_order(reduce, slots, shm.rank, data):
        reduction()


def in_order(
    reduce: Reduction, operands: Sequence[memoryview], own: int, out: memoryview
) -> Iterator[Do]:
    """What makes ``out`` the operands reduced from the first on.

    ``out`` holds operand ``own`` already; none where ``own`` is -1.
    """
    first, second, *others = operands
    yield reduce.of(out if own == 0 else first, out if own == 1 else second, out)
    for operand in others:
        yield reduce.of(out, operand, out)
