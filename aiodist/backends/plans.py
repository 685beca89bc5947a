"""Plans of collectives in shared memory: what equal calls share, a
`groups.chunk_execution.DirectPlan` each.

In slots, a plan does what the algorithm "slots" of `aiodist.collectives` does, with equal bits.
Operands that are too long for slots go in chunks, or to the other algorithms there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import setitem
from typing import Generic, TypeVar

from aiodist.backends.gradual_copy import STEP
from aiodist.backends.view_cache import CachedView, DataView, TensorViewCache
from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.all_reduce_stripes import reduce_stripes
from aiodist.collectives.broadcast_shared import broadcast_chunks, sources_of_broadcast
from aiodist.collectives.schedule import RELEASE, Schedule, Step
from aiodist.collectives.select import Rules, select
from aiodist.collectives.shm_context import ShmContext
from aiodist.collectives.shm_operations import all_reduce_chunks
from aiodist.copying import AT_ONCE, copy
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shm.group_area import LARGEST_SLOT_BYTES
from aiodist.tensors import Reduction, scratch

PIECE_BYTES = 128 << 10
"""Bytes that one rank publishes before the others begin to copy."""

Views = Sequence[memoryview]
Given = TypeVar("Given", contravariant=True)


class GroupShape:
    """A rank's position in its group, the rules by which all ranks choose, and the caches of its
    plans.
    """

    __slots__ = ("meets", "others", "rank", "rules", "shares", "size", "view_cache")

    def __init__(self, rank: int, size: int, shares: bool, rules: Rules) -> None:
        """Create the shape. ``shares``: whether the group's collectives run in memory where that is
        shared.
        """
        self.rank = rank
        self.size = size
        self.shares = shares
        self.rules = rules
        # Begin with the next rank, so that not all ranks read the same slot first.
        self.others = [(rank + distance) % size for distance in range(1, size)]
        self.meets = [(other, 0) for other in self.others]
        self.view_cache = TensorViewCache()


class SlotPlan(ABC, Generic[Given]):
    """The plan of equal calls of one collective.

    ``fits``: whether the operand goes into slots, of ``room`` bytes. ``in_chunks``: whether it goes
    in chunks, by `schedule`.
    """

    __slots__ = (
        "fingerprint",
        "fits",
        "head",
        "in_chunks",
        "knows_all",
        "nbytes",
        "pieces",
        "rank",
        "reads",
        "room",
        "shape",
        "spin_bytes",
    )

    go_ahead: Callable[[Given], None] | None = None

    def __init__(
        self,
        shape: GroupShape,
        fingerprint: Fingerprint,
        nbytes: int,
        reads: Sequence[tuple[int, int]],
        total: int,
        room: int | None = None,
    ) -> None:
        """Choose the algorithm.

        ``nbytes`` and ``reads``: as in `SlotExecution`. ``total``: bytes, as `select` counts them.
        ``room``: as in `SlotExecution`, if it differs from ``total``.
        """
        self.shape = shape
        self.rank = shape.rank
        self.fingerprint = fingerprint
        self.nbytes = nbytes
        self.spin_bytes = nbytes
        self.head = 0
        self.pieces: Sequence[slice] = ()
        self.reads = reads
        self.knows_all = len(reads) == shape.size - 1
        self.room = total if room is None else room
        choice = select(fingerprint.operation, shape.size, total, rules=shape.rules)
        # Operands that are too long for any slot go in chunks, as in `shm`. For an all_gather
        # ``total`` decides.
        in_slots = choice.algorithm == "slots" and self.room <= LARGEST_SLOT_BYTES
        self.fits = shape.shares and in_slots
        self.in_chunks = shape.shares and not self.fits

    @property
    def is_direct(self) -> bool:
        """Whether the operation can start before a context and a record are made for it."""
        return self.fits or self.in_chunks

    @property
    def meets(self) -> Sequence[tuple[int, int]]:
        """See `ChunkPlan.meets`."""
        return (
            [(other, self.head) for other in self.shape.others] if self.head else self.shape.meets
        )

    def fill_head(self, slot: memoryview, given: Given) -> None:
        """Publish an empty slot. See `ChunkPlan.fill_head`."""

    def agrees(self, slots: Views, given: Given) -> bool:
        """See `ChunkPlan.agrees`."""
        return True

    @abstractmethod
    def fill(self, slot: memoryview, given: Given) -> None:
        """See `SlotExecution.fill`."""

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """See `SlotExecution.fill_piece`."""
        raise NotImplementedError(f"{self.fingerprint.operation} publishes nothing in pieces")

    def finish_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """See `SlotExecution.finish_piece`."""
        raise NotImplementedError(f"{self.fingerprint.operation} publishes nothing in pieces")

    @abstractmethod
    def finish(self, number: int, slots: Views, given: Given) -> bool:
        """See `SlotExecution.finish`."""

    def schedule(self, shm: ShmContext, given: Given) -> Schedule:
        """Return the schedule, cached from an equal call on the same memory. See
        `ChunkPlan.schedule`.
        """
        data, beside = self._memory(given)
        kept = data.schedule if data.beside is beside else None
        return kept or self.shape.view_cache.keep(data, beside, self._schedule(shm, given))

    def _memory(self, given: Given) -> tuple[CachedView, object]:
        """Return the view under which the schedule is cached, and the other memory that it uses."""
        raise NotImplementedError(f"{self.fingerprint.operation} does not go in chunks here")

    def _schedule(self, shm: ShmContext, given: Given) -> Iterator[Step]:
        """Return the steps in chunks."""
        raise NotImplementedError(f"{self.fingerprint.operation} does not go in chunks here")


class _OneTensor(SlotPlan[DataView]):
    """``given``: the data, which is published unchanged."""

    __slots__ = ("length",)

    def __init__(
        self,
        shape: GroupShape,
        fingerprint: Fingerprint,
        length: int,
        puts_up: bool,
        reads: Sequence[int],
    ) -> None:
        """Create a plan. ``length``: bytes of the tensor. ``reads``: the ranks whose slots this
        rank reads.
        """
        self.length = length
        own = length if puts_up else -1
        super().__init__(shape, fingerprint, own, [(rank, length) for rank in reads], length)

    def fill(self, slot: memoryview, given: DataView) -> None:
        if self.length <= AT_ONCE:  # without a call, whose cost counts for 4 bytes
            slot[: self.length] = given.view
        else:
            copy(slot[: self.length], given.view)

    def _memory(self, given: DataView) -> tuple[CachedView, object]:
        return given, None


class BarrierPlan(SlotPlan[None]):
    """``given``: None."""

    __slots__ = ()

    def __init__(self, shape: GroupShape) -> None:
        super().__init__(shape, Fingerprint("barrier"), 0, [(r, 0) for r in shape.others], 0)

    def fill(self, slot: memoryview, given: None) -> None:
        """Publish only a flag."""

    def finish(self, number: int, slots: Views, given: None) -> bool:
        return True


class BroadcastPlan(_OneTensor):
    """The root is done when it has published the data. The others copy out while it copies in."""

    __slots__ = ("_meets", "_root")

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, length: int, root: int) -> None:
        self._root = root
        peers = sources_of_broadcast(shape.rank, root)
        self._meets = [(rank, 0) for rank in peers]
        super().__init__(shape, fingerprint, length, shape.rank == root, peers)
        if length > PIECE_BYTES:
            stops = [*range(PIECE_BYTES, length, PIECE_BYTES), length]
            self.pieces = [slice(start, stop) for start, stop in pairwise([0, *stops])]
            self.spin_bytes = PIECE_BYTES

    @property
    def meets(self) -> Sequence[tuple[int, int]]:
        return self._meets

    def fill_piece(self, piece: slice, slot: memoryview, given: DataView) -> None:
        slot[piece] = given.view[piece]

    def finish_piece(self, piece: slice, slot: memoryview, given: DataView) -> None:
        given.view[piece] = slot[piece]

    def finish(self, number: int, slots: Views, given: DataView) -> bool:
        if self.rank != self._root:
            copy(given.view, slots[self._root][: self.length])
        return True

    def _schedule(self, shm: ShmContext, given: DataView) -> Iterator[Step]:
        return broadcast_chunks(shm, self._root, given.view)


class _Reducing(_OneTensor):
    """Reduce the data in place, in the order of the ranks."""

    __slots__ = ("reduce",)

    def __init__(
        self,
        shape: GroupShape,
        fingerprint: Fingerprint,
        length: int,
        puts_up: bool,
        reads: Sequence[int],
        reduce: Reduction,
    ) -> None:
        self.reduce = reduce
        super().__init__(shape, fingerprint, length, puts_up, reads)
        self.fits = self.fits and not reduce.needs_prepare
        self.in_chunks = self.in_chunks and not reduce.needs_prepare

    def finish(self, number: int, slots: Views, given: DataView) -> bool:
        if self.reads:
            steps = given.steps[number]
            if steps is None:
                steps = given.steps[number] = self._steps(slots, given.view)
            for step in steps:
                step()
        return True

    def _steps(self, slots: Views, data: memoryview) -> Sequence[Callable[[], object]]:
        operands = [slot[: self.length] for slot in slots]
        steps: list[Callable[[], object]] = []
        if self.nbytes < 0:  # this rank's own operand is not in its slot
            if self.rank < 2:
                operands[self.rank] = data
            else:  # the first operands overwrite this rank's own, so it is copied first
                operands[self.rank] = own = scratch(self.length)
                steps.append(partial(setitem, own, slice(None), data))
        steps += in_order(self.reduce, operands, self.rank, data)
        return [*steps, *end_of(self.reduce, data)]


class ReducePlan(_Reducing):
    """The root reads all operands; the others are done when theirs is published."""

    __slots__ = ("_root",)

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, length: int, root: int, reduce: Reduction
    ) -> None:
        self._root = root
        is_root = shape.rank == root
        reads = shape.others if is_root else ()
        super().__init__(shape, fingerprint, length, not is_root, reads, reduce)

    def _schedule(self, shm: ShmContext, given: DataView) -> Iterator[Step]:
        yield from reduce_stripes(shm, self._root, given.view, self.reduce)
        if self.rank == self._root:
            yield from finish_gradually(shm, self.reduce, given.view)


class AllReducePlan(_Reducing):
    """Every rank reads all operands."""

    __slots__ = ()

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, length: int, reduce: Reduction
    ) -> None:
        super().__init__(shape, fingerprint, length, True, shape.others, reduce)

    def _schedule(self, shm: ShmContext, given: DataView) -> Iterator[Step]:
        yield from all_reduce_chunks(shm, given.view, self.reduce, self.shape.rules)
        yield from finish_gradually(shm, self.reduce, given.view)


def end_of(reduce: Reduction, out: memoryview) -> Iterator[Callable[[], object]]:
    """Yield the steps that remain when ``out`` has been reduced, if any."""
    if reduce.needs_finish:
        yield partial(reduce.finish, out)


def finish_gradually(shm: ShmContext, reduce: Reduction, data: memoryview) -> Iterator[Step]:
    """Yield `end_of` as steps for long data, when all its chunks are done."""
    if reduce.needs_finish:
        step = max(STEP // reduce.itemsize, 1) * reduce.itemsize
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            yield RELEASE, shm.rank, 0, (), [partial(reduce.finish, piece)]
