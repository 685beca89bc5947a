"""Plans of collectives in shared memory: what equal calls share, a `groups.group_engine.ShmPlan` each.

A plan is an operation's fingerprint, and what `aiodist.collectives` does in slots and in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from aiodist.backends.gradual_copy import STEP
from aiodist.backends.view_cache import TensorViewCache
from aiodist.collectives.all_gather_shared import AllGatherSlots, all_gather_chunks
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.collectives.all_reduce_stripes import reduce_stripes
from aiodist.collectives.all_to_all_shared import AllToAllExchange
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import BroadcastSlots, broadcast_chunks, read_from
from aiodist.collectives.partition import offsets_of
from aiodist.collectives.reduce_scatter_shared import ReduceScatterSlots, reduce_scatter_chunks
from aiodist.collectives.reduce_slots import ReduceSlots
from aiodist.collectives.schedule import RELEASE, Schedule, Step
from aiodist.collectives.select import Rules, select
from aiodist.collectives.shm_choice import all_reduce_chunks
from aiodist.collectives.shm_exchange import Exchange, InChunks
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.slot_blocks import starts_of
from aiodist.collectives.views import BlocksView, CachedView, DataView
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import ShmPlan
from aiodist.groups.operation import Opened
from aiodist.shm.group_area import LARGEST_SLOT_BYTES
from aiodist.tensors import Buffer, Reduction, scratch
from aiodist.tensors.memory_overlap import overlaps_others

T = TypeVar("T")

_NO_ROOM = 1 << 62
"""`ShmPlan.room` of what never goes into slots."""


class GroupShape:
    """A rank's position in its group, the rules by which all ranks choose, and the caches of its plans."""

    __slots__ = ("rank", "rules", "size", "view_cache")

    def __init__(self, rank: int, size: int, rules: Rules) -> None:
        self.rank = rank
        self.size = size
        self.rules = rules
        self.view_cache = TensorViewCache()

    def kept(self, data: CachedView, beside: object, steps: Iterator[Step]) -> Schedule:
        """Return ``steps``, or those of an equal call on the memory ``data`` and ``beside``."""
        cached = data.schedule if data.beside is beside else None
        return cached or self.view_cache.keep(data, beside, steps)

    def kept_for_data(self, given: DataView, steps: Iterator[Step]) -> Schedule:
        """Return `kept` steps of a call with one tensor."""
        return self.kept(given, None, steps)

    def kept_for_first(
        self, given: tuple[CachedView, CachedView], steps: Iterator[Step]
    ) -> Schedule:
        """Return `kept` steps of a call with two tensors, listed with the first."""
        return self.kept(given[0], given[1], steps)

    def kept_for_second(
        self, given: tuple[CachedView, CachedView], steps: Iterator[Step]
    ) -> Schedule:
        """Return `kept` steps of a call with two tensors, listed with the second."""
        return self.kept(given[1], given[0], steps)


def barrier_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: None
) -> ShmPlan[None]:
    """Return the plan of a barrier."""
    exchange = barrier_slots(shape.rank, shape.size)
    return _plan(shape, agreed, exchange, exchange, 0)


def broadcast_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: None
) -> ShmPlan[DataView]:
    """Return the plan of a broadcast: it takes the tensor."""
    rank, size, root = shape.rank, shape.size, agreed.root
    (buffer,) = opened.inputs or opened.outputs

    def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
        return broadcast_chunks(layout, root, given.view)

    chunks = InChunks(rank, size, steps, read_from(rank, root, 0), shape.kept_for_data)
    slots = BroadcastSlots(rank, size, buffer.nbytes, root)
    return _plan(shape, agreed, slots, chunks, buffer.nbytes)


def reduce_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: Reduction
) -> ShmPlan[DataView]:
    """Return the plan of a reduce: it takes the tensor."""
    rank, size, root, nbytes = shape.rank, shape.size, agreed.root, opened.inputs[0].nbytes

    def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
        yield from reduce_stripes(layout, root, given.view, reduce)
        if rank == root:
            yield from finish_gradually(layout, reduce, given.view)

    slots = ReduceSlots(rank, size, nbytes, root, reduce, last_of(reduce))
    chunks = InChunks(rank, size, steps, keep=shape.kept_for_data)
    return _plan(shape, agreed, slots, chunks, nbytes)


def all_reduce_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: Reduction
) -> ShmPlan[DataView]:
    """Return the plan of an all_reduce: it takes the tensor."""
    rank, size, nbytes = shape.rank, shape.size, opened.inputs[0].nbytes

    def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
        yield from all_reduce_chunks(layout, given.view, reduce, shape.rules)
        yield from finish_gradually(layout, reduce, given.view)

    slots = AllReduceSlots(rank, size, nbytes, reduce, last_of(reduce))
    chunks = InChunks(rank, size, steps, keep=shape.kept_for_data)
    return _plan(shape, agreed, slots, chunks, nbytes)


def all_gather_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: None
) -> ShmPlan[tuple[DataView, BlocksView]]:
    """Return the plan of an all_gather: it takes the own block, and a place for each rank's."""
    rank, size, lengths = shape.rank, shape.size, opened.into

    def steps(layout: ShmLayout, given: tuple[DataView, BlocksView]) -> Iterator[Step]:
        own, blocks = given[0].view, list(given[1].views)
        place = blocks[rank]
        if overlaps_others(own, blocks, rank):
            # Blocks are written over it while it is read, so a copy of it travels. Where the steps are
            # cached, so is the memory of the copy.
            copied = scratch(len(own))
            yield from copy_gradually(layout, copied, own)
            own = copied
        blocks[rank] = own
        yield from all_gather_chunks(layout, blocks)
        yield from copy_gradually(layout, place, own)

    slots = AllGatherSlots(rank, size, lengths)
    chunks = InChunks(rank, size, steps, keep=shape.kept_for_first)
    return _plan(shape, agreed, slots, chunks, sum(lengths), max(lengths))


def reduce_scatter_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: Reduction
) -> ShmPlan[tuple[BlocksView, DataView]]:
    """Return the plan of a reduce_scatter: it takes all blocks, and a place for the own one."""
    rank, size, lengths = shape.rank, shape.size, opened.out_of

    def steps(layout: ShmLayout, given: tuple[BlocksView, DataView]) -> Iterator[Step]:
        blocks, place = given[0].views, given[1].view
        # Blocks that others are still to get are not written over. Cached steps keep the scratch memory.
        is_apart = not overlaps_others(place, blocks, rank)
        result = place if is_apart else scratch(len(place))
        yield from reduce_scatter_chunks(layout, blocks, result, reduce)
        yield from finish_gradually(layout, reduce, result)
        if not is_apart:
            yield from copy_gradually(layout, place, result)

    slots = ReduceScatterSlots(rank, size, lengths, reduce, last_of(reduce))
    chunks = InChunks(rank, size, steps, keep=shape.kept_for_second)
    return _plan(shape, agreed, slots, chunks, offsets_of(lengths)[-1])


def all_to_all_plan(
    shape: GroupShape, agreed: Fingerprint, opened: Opened[Buffer], reduce: None
) -> ShmPlan[tuple[BlocksView, BlocksView]]:
    """Return the plan of an all_to_all: it takes a block for each rank, and a place for each rank's.

    A rank knows the lengths of its own blocks alone: what goes into slots is for each rank to say.
    """
    rank, size, lengths = shape.rank, shape.size, opened.out_of
    slots = AllToAllExchange(rank, size, lengths, True)
    chunks = AllToAllExchange(rank, size, lengths, False, shape.kept_for_second)
    room = starts_of(lengths)[-1]
    return ShmPlan(agreed, slots, chunks, room if room <= LARGEST_SLOT_BYTES else _NO_ROOM)


PLANS: Mapping[str, Callable[[GroupShape, Fingerprint, Opened[Buffer], Any], ShmPlan[Any]]] = (
    MappingProxyType(
        {
            "barrier": barrier_plan,
            "broadcast": broadcast_plan,
            "reduce": reduce_plan,
            "all_reduce": all_reduce_plan,
            "all_gather": all_gather_plan,
            "reduce_scatter": reduce_scatter_plan,
            "all_to_all": all_to_all_plan,
        }
    )
)
"""By the kind of a collective: what makes its plan."""


def _plan(
    shape: GroupShape,
    agreed: Fingerprint,
    slots: Exchange[T],
    chunks: Exchange[T],
    total: int,
    room: int | None = None,
) -> ShmPlan[T]:
    """Return the plan. ``total``: bytes, as `select` counts them. ``room``: of a slot, if that differs."""
    choice = select(agreed.operation, shape.size, total, rules=shape.rules)
    room = total if room is None else room
    in_slots = choice.algorithm == "slots" and room <= LARGEST_SLOT_BYTES
    return ShmPlan(agreed, slots, chunks, room if in_slots else _NO_ROOM)


def last_of(reduce: Reduction) -> Callable[[memoryview], object] | None:
    """Return what remains to be done with reduced memory; None: nothing."""
    return reduce.finish if reduce.needs_finish else None


def copy_gradually(layout: ShmLayout, target: memoryview, source: memoryview) -> Iterator[Step]:
    """Yield ``target[:] = source`` as steps, for long data that share no memory or are the same."""
    for start in range(0, len(source), STEP):
        piece = slice(start, start + STEP)
        yield RELEASE, layout.rank, 0, [(target[piece], source[piece])], ()


def finish_gradually(layout: ShmLayout, reduce: Reduction, data: memoryview) -> Iterator[Step]:
    """Yield `last_of` as steps for long data, when all its chunks are done."""
    if reduce.needs_finish:
        step = max(STEP // reduce.itemsize, 1) * reduce.itemsize
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            yield RELEASE, layout.rank, 0, (), [partial(reduce.finish, piece)]
