"""Every collective over shared memory by its name: what `operations` has over messages.

The same arguments mean the same there and here; a `ShmContext` stands in the place of the `Channel`, and
`select.SHARED_RULES` is the table.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aiodist.collectives.all_gather_shared import all_gather_chunks, all_gather_slots
from aiodist.collectives.all_reduce_chain import all_reduce_chain
from aiodist.collectives.all_reduce_exchange import all_reduce_exchange
from aiodist.collectives.all_reduce_slots import all_reduce_slots
from aiodist.collectives.all_reduce_stripes import all_reduce_stripes, reduce_stripes
from aiodist.collectives.all_to_all_shared import all_to_all_shared
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import (
    broadcast_chunks,
    broadcast_slots,
    sources_of_broadcast,
)
from aiodist.collectives.gather_shared import gather_shared, scatter_shared
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks, reduce_scatter_slots
from aiodist.collectives.reduce_slots import reduce_slots
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.schedule import Step, carry_out
from aiodist.collectives.select import CROWDED, MANY, SHARED_RULES, Rules, select
from aiodist.collectives.shm_context import ShmContext

Run = Coroutine[Any, Any, None]
Blocks = Sequence[memoryview]

ALGORITHMS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "broadcast": ("slots", "chunks"),
        "reduce": ("slots", "stripes"),
        "all_reduce": ("slots", "exchange", "chain", "stripes"),
        "all_gather": ("slots", "chunks"),
        "reduce_scatter": ("slots", "chunks"),
    }
)
"""Operations that run in several ways, and their names."""


def most_in_slots(operation: str, ranks: int, slot_bytes: int) -> int:
    """The most bytes, as `select` counts them, that ``ranks`` ranks have room for in slots.

    In an all_gather it counts all blocks, and a slot holds one.
    """
    return slot_bytes * ranks if operation == "all_gather" else slot_bytes


def why_not(operation: str, algorithm: str, ranks: int, nbytes: int, slot_bytes: int) -> str:
    """Why ``algorithm`` cannot run with ``ranks`` ranks on up to ``nbytes``; "" where it can.

    ``nbytes`` as `select` counts them; ``slot_bytes``: `ShmContext.slot_bytes`, at best.
    """
    if algorithm not in ALGORITHMS.get(operation, ()):
        return "asks for what does not exist here"
    if algorithm == "slots" and nbytes > most_in_slots(operation, ranks, slot_bytes):
        return f"puts more into slots than the {slot_bytes} bytes that they hold"
    if algorithm == "exchange" and ranks != 2:
        return "is for two ranks and no other number"
    return ""


def barrier(shm: ShmContext) -> Run:
    """Return when all ranks have entered."""
    return barrier_slots(shm)


def broadcast(shm: ShmContext, root: int, data: memoryview, rules: Rules = SHARED_RULES) -> Run:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    if _choice("broadcast", shm, len(data), rules) == "slots":
        return broadcast_slots(shm, root, data)
    return carry_out(shm, broadcast_chunks(shm, root, data), sources_of_broadcast(shm.rank, root))


def reduce(
    shm: ShmContext, root: int, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    if _choice("reduce", shm, len(data), rules) == "slots":
        return reduce_slots(shm, root, data, op)
    return carry_out(shm, reduce_stripes(shm, root, data, op))


def all_reduce(
    shm: ShmContext, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``data`` over all ranks, in place; bitwise the same result everywhere."""
    if _choice("all_reduce", shm, len(data), rules) == "slots":
        return all_reduce_slots(shm, data, op)
    return carry_out(shm, all_reduce_chunks(shm, data, op, rules))


def all_reduce_chunks(
    shm: ShmContext, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Iterator[Step]:
    """What `all_reduce` does where the data does not go into slots."""
    match _choice("all_reduce", shm, len(data), rules):
        case "exchange":
            return all_reduce_exchange(shm, data, op)
        case "chain":
            return all_reduce_chain(shm, data, op)
    return all_reduce_stripes(shm, data, op)


def all_gather(shm: ShmContext, blocks: Blocks, rules: Rules = SHARED_RULES) -> Run:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already."""
    lengths = [len(block) for block in blocks]
    if _choice("all_gather", shm, sum(lengths), rules, max(lengths)) == "slots":
        return all_gather_slots(shm, blocks)
    return carry_out(shm, all_gather_chunks(shm, blocks))


def reduce_scatter(
    shm: ShmContext, blocks: Blocks, out: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    if _choice("reduce_scatter", shm, sum(map(len, blocks)), rules) == "slots":
        return reduce_scatter_slots(shm, blocks, out, op)
    return carry_out(shm, reduce_scatter_chunks(shm, blocks, out, op))


def gather(shm: ShmContext, root: int, data: memoryview, blocks: Blocks | None) -> Run:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""
    return gather_shared(shm, root, data, blocks)


def scatter(shm: ShmContext, root: int, blocks: Blocks | None, out: memoryview) -> Run:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""
    return scatter_shared(shm, root, blocks, out)


def all_to_all(shm: ShmContext, inputs: Blocks, outputs: Blocks) -> Run:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    return all_to_all_shared(shm, inputs, outputs)


def _choice(
    operation: str, shm: ShmContext, nbytes: int, rules: Rules, in_slot: int | None = None
) -> str:
    """``in_slot``: the most that goes into one slot, where that is not all ``nbytes``."""
    locality = CROWDED if shm.crowded else None
    name = select(operation, shm.size, nbytes, locality, rules).algorithm
    room = nbytes if in_slot is None else in_slot
    if name == "slots" and room > shm.slot_bytes:  # as a group that found little room has them
        return select(operation, shm.size, MANY, locality, SHARED_RULES).algorithm
    return name
