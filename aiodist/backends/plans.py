"""Plans of collectives in shared memory: what equal calls share, a `groups.group_engine.ShmPlan` each.

A plan is an operation's fingerprint, and what `aiodist.collectives` does in slots and in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

from aiodist.backends.gradual_copy import STEP
from aiodist.backends.view_cache import TensorViewCache
from aiodist.collectives.all_gather_shared import AllGatherSlots, all_gather_chunks
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.collectives.all_reduce_stripes import reduce_stripes
from aiodist.collectives.all_to_all_shared import AllToAll
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import BroadcastSlots, broadcast_chunks, read_from
from aiodist.collectives.partition import offsets_of
from aiodist.collectives.reduce_scatter_shared import ReduceScatterSlots, reduce_scatter_chunks
from aiodist.collectives.reduce_slots import ReduceSlots
from aiodist.collectives.schedule import RELEASE, Schedule, Step
from aiodist.collectives.select import Rules, select
from aiodist.collectives.shm_exchange import Exchange, InChunks
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.shm_operations import all_reduce_chunks
from aiodist.collectives.slot_blocks import starts_of
from aiodist.collectives.views import BlocksView, CachedView, DataView
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shm.group_area import LARGEST_SLOT_BYTES
from aiodist.tensors import Reduction

Given = TypeVar("Given", contravariant=True)

_NO_ROOM = 1 << 62
"""`ShmPlan.room` of what never goes into slots."""


class GroupShape:
    """A rank's position in its group, the rules by which all ranks choose, and the caches of its
    plans.
    """

    __slots__ = ("rank", "rules", "shares", "size", "view_cache")

    def __init__(self, rank: int, size: int, shares: bool, rules: Rules) -> None:
        """Create the shape. ``shares``: whether the group's collectives run in memory where that is
        shared.
        """
        self.rank = rank
        self.size = size
        self.shares = shares
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


class ShmPlan(Generic[Given]):
    """The plan of equal calls of one collective.

    ``is_direct``: whether the operation can start before a context and a record are made for it.
    """

    __slots__ = ("chunks", "fingerprint", "is_direct", "room", "slots")

    def __init__(
        self,
        shape: GroupShape,
        fingerprint: Fingerprint,
        slots: Exchange[Given],
        chunks: Exchange[Given],
        total: int,
        room: int | None = None,
    ) -> None:
        """``total``: bytes, as `select` counts them. ``room``: what a slot must hold, if that differs."""
        self.fingerprint = fingerprint
        self.slots = slots
        self.chunks = chunks
        choice = select(fingerprint.operation, shape.size, total, rules=shape.rules)
        room = total if room is None else room
        in_slots = choice.algorithm == "slots" and room <= LARGEST_SLOT_BYTES
        self.room = room if in_slots else _NO_ROOM
        self.is_direct = shape.shares


class BarrierPlan(ShmPlan[None]):
    """Without a tensor."""

    __slots__ = ()

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint) -> None:
        exchange = barrier_slots(shape.rank, shape.size)
        super().__init__(shape, fingerprint, exchange, exchange, 0)


class BroadcastPlan(ShmPlan[DataView]):
    """On one tensor of ``length`` bytes."""

    __slots__ = ()

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, length: int, root: int) -> None:
        rank, size = shape.rank, shape.size

        def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
            return broadcast_chunks(layout, root, given.view)

        reads = read_from(rank, root, 0)
        chunks = InChunks(rank, size, steps, reads, shape.kept_for_data)
        slots = BroadcastSlots(rank, size, length, root)
        super().__init__(shape, fingerprint, slots, chunks, length)


class ReducingPlan(ShmPlan[Given]):
    """A plan whose data is reduced. ``is_direct`` unless the data is changed before."""

    __slots__ = ("reduce",)

    def __init__(
        self,
        shape: GroupShape,
        fingerprint: Fingerprint,
        slots: Exchange[Given],
        chunks: Exchange[Given],
        total: int,
        reduce: Reduction,
    ) -> None:
        super().__init__(shape, fingerprint, slots, chunks, total)
        self.reduce = reduce
        self.is_direct = self.is_direct and not reduce.needs_prepare


class ReducePlan(ReducingPlan[DataView]):
    """On one tensor of ``length`` bytes."""

    __slots__ = ()

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, length: int, root: int, reduce: Reduction
    ) -> None:
        rank, size = shape.rank, shape.size

        def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
            yield from reduce_stripes(layout, root, given.view, reduce)
            if rank == root:
                yield from finish_gradually(layout, reduce, given.view)

        slots = ReduceSlots(rank, size, length, root, reduce, partial(end_of, reduce))
        chunks = InChunks(rank, size, steps, keep=shape.kept_for_data)
        super().__init__(shape, fingerprint, slots, chunks, length, reduce)


class AllReducePlan(ReducingPlan[DataView]):
    """On one tensor of ``length`` bytes."""

    __slots__ = ()

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, length: int, reduce: Reduction
    ) -> None:
        rank, size = shape.rank, shape.size

        def steps(layout: ShmLayout, given: DataView) -> Iterator[Step]:
            yield from all_reduce_chunks(layout, given.view, reduce, shape.rules)
            yield from finish_gradually(layout, reduce, given.view)

        slots = AllReduceSlots(rank, size, length, reduce, partial(end_of, reduce))
        chunks = InChunks(rank, size, steps, keep=shape.kept_for_data)
        super().__init__(shape, fingerprint, slots, chunks, length, reduce)


class AllGatherPlan(ShmPlan[tuple[DataView, BlocksView]]):
    """On the own block, with a place for each rank's block, of ``lengths`` bytes."""

    __slots__ = ()

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        rank, size = shape.rank, shape.size

        def steps(layout: ShmLayout, given: tuple[DataView, BlocksView]) -> Iterator[Step]:
            blocks = list(given[1].views)
            own, blocks[rank] = given[0].view, given[0].view
            yield from all_gather_chunks(layout, blocks)
            place = given[1].views[rank]
            for start in range(0, len(own), STEP):
                piece = slice(start, start + STEP)
                yield RELEASE, rank, 0, [(place[piece], own[piece])], ()

        slots = AllGatherSlots(rank, size, lengths)
        chunks = InChunks(rank, size, steps, keep=shape.kept_for_first)
        super().__init__(shape, fingerprint, slots, chunks, sum(lengths), max(lengths))


class ReduceScatterPlan(ReducingPlan[tuple[BlocksView, DataView]]):
    """On a block for each rank, of ``lengths`` bytes, and the place for the reduced own block."""

    __slots__ = ()

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int], reduce: Reduction
    ) -> None:
        rank, size = shape.rank, shape.size

        def steps(layout: ShmLayout, given: tuple[BlocksView, DataView]) -> Iterator[Step]:
            blocks, place = given[0].views, given[1].view
            yield from reduce_scatter_chunks(layout, blocks, place, reduce)
            yield from finish_gradually(layout, reduce, place)

        slots = ReduceScatterSlots(rank, size, lengths, reduce, partial(end_of, reduce))
        chunks = InChunks(rank, size, steps, keep=shape.kept_for_second)
        super().__init__(shape, fingerprint, slots, chunks, offsets_of(lengths)[-1], reduce)


class AllToAllPlan(ShmPlan[tuple[BlocksView, BlocksView]]):
    """On a block for each rank, of ``lengths`` bytes, and a place for each rank's block.

    A rank knows the lengths of its own blocks alone: what goes into slots is for each rank to say.
    """

    __slots__ = ()

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        rank, size, keep = shape.rank, shape.size, shape.kept_for_second
        slots = AllToAll(rank, size, lengths, True)
        chunks = AllToAll(rank, size, lengths, False, keep)
        super().__init__(shape, fingerprint, slots, chunks, 0)
        room = starts_of(lengths)[-1]
        self.room = room if room <= LARGEST_SLOT_BYTES else _NO_ROOM


def end_of(reduce: Reduction, out: memoryview) -> Iterator[Callable[[], object]]:
    """Yield the steps that remain when ``out`` has been reduced, if any."""
    if reduce.needs_finish:
        yield partial(reduce.finish, out)


def finish_gradually(layout: ShmLayout, reduce: Reduction, data: memoryview) -> Iterator[Step]:
    """Yield `end_of` as steps for long data, when all its chunks are done."""
    if reduce.needs_finish:
        step = max(STEP // reduce.itemsize, 1) * reduce.itemsize
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            yield RELEASE, layout.rank, 0, (), [partial(reduce.finish, piece)]
