"""Every collective over shared memory by its name: what `operations` has over messages.

The same arguments mean the same there and here; a `ShmContext` stands in the place of the `Channel`, and
`select.SHARED_RULES` is the table.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aiodist.collectives.all_gather_shared import AllGatherSlots, all_gather_chunks
from aiodist.collectives.all_reduce_chain import all_reduce_chain
from aiodist.collectives.all_reduce_exchange import all_reduce_exchange
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.collectives.all_reduce_stripes import all_reduce_stripes, reduce_stripes
from aiodist.collectives.all_to_all_shared import AllToAllExchange
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import BroadcastSlots, broadcast_chunks, read_from
from aiodist.collectives.gather_shared import GatherLeaf, GatherRoot, ScatterLeaf, ScatterRoot
from aiodist.collectives.reduce_scatter_shared import ReduceScatterSlots, reduce_scatter_chunks
from aiodist.collectives.reduce_slots import ReduceSlots
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import Step
from aiodist.collectives.select import CROWDED, MANY, SHARED_RULES, Rules, select
from aiodist.collectives.shm_exchange import InChunks, ShmContext
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.slot_blocks import starts_of
from aiodist.collectives.views import BlocksView, DataView

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

    ``nbytes`` as `select` counts them; ``slot_bytes``: `ShmLayout.slot_bytes`, at best.
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
    return shm.run(barrier_slots(shm.rank, shm.size), None)


def broadcast(shm: ShmContext, root: int, data: memoryview, rules: Rules = SHARED_RULES) -> Run:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, size, nbytes = shm.rank, shm.size, len(data)
    if _choice("broadcast", shm, nbytes, rules) == "slots":
        return shm.run(BroadcastSlots(rank, size, nbytes, root), DataView(data))
    reads = read_from(rank, root, 0)
    steps = broadcast_chunks
    return shm.run(InChunks(rank, size, lambda at, data: steps(at, root, data), reads), data)


def reduce(
    shm: ShmContext, root: int, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    rank, size, nbytes = shm.rank, shm.size, len(data)
    if _choice("reduce", shm, nbytes, rules) == "slots":
        return shm.run(ReduceSlots(rank, size, nbytes, root, op), DataView(data))
    return shm.run(InChunks(rank, size, lambda at, data: reduce_stripes(at, root, data, op)), data)


def all_reduce(
    shm: ShmContext, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``data`` over all ranks, in place; bitwise the same result everywhere."""
    rank, size, nbytes = shm.rank, shm.size, len(data)
    if _choice("all_reduce", shm, nbytes, rules) == "slots":
        return shm.run(AllReduceSlots(rank, size, nbytes, op), DataView(data))
    steps = all_reduce_chunks
    return shm.run(InChunks(rank, size, lambda at, data: steps(at, data, op, rules)), data)


def all_reduce_chunks(
    shm: ShmLayout, data: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Iterator[Step]:
    """Return the steps of `all_reduce` where the data does not go into slots."""
    match _choice("all_reduce", shm, len(data), rules):
        case "exchange":
            return all_reduce_exchange(shm, data, op)
        case "chain":
            return all_reduce_chain(shm, data, op)
    return all_reduce_stripes(shm, data, op)


def all_gather(shm: ShmContext, blocks: Blocks, rules: Rules = SHARED_RULES) -> Run:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already."""
    rank, size, lengths = shm.rank, shm.size, [len(block) for block in blocks]
    if _choice("all_gather", shm, sum(lengths), rules, max(lengths)) == "slots":
        given = DataView(blocks[rank]), BlocksView(blocks)
        return shm.run(AllGatherSlots(rank, size, lengths), given)
    return shm.run(InChunks(rank, size, all_gather_chunks), blocks)


def reduce_scatter(
    shm: ShmContext, blocks: Blocks, out: memoryview, op: Reduction, rules: Rules = SHARED_RULES
) -> Run:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    rank, size, lengths = shm.rank, shm.size, [len(block) for block in blocks]
    if _choice("reduce_scatter", shm, sum(lengths), rules) == "slots":
        given = BlocksView(blocks), DataView(out)
        return shm.run(ReduceScatterSlots(rank, size, lengths, op), given)
    steps = reduce_scatter_chunks
    return shm.run(InChunks(rank, size, lambda at, blocks: steps(at, blocks, out, op)), blocks)


def gather(shm: ShmContext, root: int, data: memoryview, blocks: Blocks | None) -> Run:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""
    rank, size = shm.rank, shm.size
    if rank != root:
        return shm.run(GatherLeaf(rank, size, root, len(data), shm.slot_bytes), DataView(data))
    assert blocks is not None
    exchange = GatherRoot(rank, size, [len(block) for block in blocks])
    return shm.run(exchange, (DataView(data), BlocksView(blocks)))


def scatter(shm: ShmContext, root: int, blocks: Blocks | None, out: memoryview) -> Run:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""
    rank, size = shm.rank, shm.size
    if rank != root:
        return shm.run(ScatterLeaf(rank, size, root), DataView(out))
    assert blocks is not None
    exchange = ScatterRoot(rank, size, [len(block) for block in blocks], shm.slot_bytes)
    return shm.run(exchange, (BlocksView(blocks), DataView(out)))


def all_to_all(shm: ShmContext, inputs: Blocks, outputs: Blocks) -> Run:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    lengths = [len(block) for block in inputs]
    fits = starts_of(lengths)[-1] <= shm.slot_bytes
    exchange = AllToAllExchange(shm.rank, shm.size, lengths, fits)
    return shm.run(exchange, (BlocksView(inputs), BlocksView(outputs)))


def _choice(
    operation: str, shm: ShmLayout, nbytes: int, rules: Rules, in_slot: int | None = None
) -> str:
    """``in_slot``: the most that goes into one slot, where that is not all ``nbytes``."""
    locality = CROWDED if shm.crowded else None
    name = select(operation, shm.size, nbytes, locality, rules).algorithm
    room = nbytes if in_slot is None else in_slot
    if name == "slots" and room > shm.slot_bytes:  # as a group that found little room has them
        return select(operation, shm.size, MANY, locality, SHARED_RULES).algorithm
    return name
