"""Which algorithm runs a collective in shared memory: `select.SHARED_RULES` is the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from aiodist.collectives.all_reduce_chain import all_reduce_chain
from aiodist.collectives.all_reduce_exchange import all_reduce_exchange
from aiodist.collectives.all_reduce_stripes import all_reduce_stripes
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import Step
from aiodist.collectives.select import MANY, OVERSUBSCRIBED, SHARED_RULES, Rules, select
from aiodist.collectives.shm_layout import ShmLayout

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

    ``nbytes`` as `select` counts them; ``slot_bytes``: `ShmLayout.slot_bytes`, at best.
    """
    if algorithm not in ALGORITHMS.get(operation, ()):
        return "asks for what does not exist here"
    if algorithm == "slots" and nbytes > most_in_slots(operation, ranks, slot_bytes):
        return f"puts more into slots than the {slot_bytes} bytes that they hold"
    if algorithm == "exchange" and ranks != 2:
        return "is for two ranks and no other number"
    return ""


def choose_shared(
    operation: str, shm: ShmLayout, nbytes: int, rules: Rules, in_slot: int | None = None
) -> str:
    """Return the name of the algorithm for ``nbytes``, as `select` counts them.

    ``in_slot``: the most that goes into one slot, where that is not all ``nbytes``.
    """
    locality = OVERSUBSCRIBED if shm.oversubscribed else None
    name = select(operation, shm.size, nbytes, locality, rules).algorithm
    room = nbytes if in_slot is None else in_slot
    if name == "slots" and room > shm.slot_bytes:  # as a group that found little room has them
        return select(operation, shm.size, MANY, locality, SHARED_RULES).algorithm
    return name


def all_reduce_chunks(
    shm: ShmLayout, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Iterator[Step]:
    """Return the steps of `all_reduce` where the data does not go into slots."""
    match choose_shared("all_reduce", shm, len(data), rules):
        case "exchange":
            return all_reduce_exchange(shm, data, op)
        case "chain":
            return all_reduce_chain(shm, data, op)
    return all_reduce_stripes(shm, data, op)
