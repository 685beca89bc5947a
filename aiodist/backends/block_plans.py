"""Plans of the collectives with a block for each rank; see `plans`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.backends.gradual_copy import STEP
from aiodist.backends.plans import GroupShape, SlotPlan, Views, end_of, finish_gradually
from aiodist.backends.view_cache import BlocksView, CachedView, DataView
from aiodist.collectives.all_gather_shared import all_gather_chunks
from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.all_to_all_shared import all_to_all_chunks
from aiodist.collectives.layout import offsets_of
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks
from aiodist.collectives.schedule import RELEASE, Step
from aiodist.collectives.shm_context import ShmContext
from aiodist.collectives.slot_blocks import lengths_of, read_blocks, starts_of, write_blocks
from aiodist.copying import copy
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shm.group_area import LARGEST_SLOT_BYTES
from aiodist.tensors import Reduction


class AllGatherPlan(SlotPlan[tuple[DataView, BlocksView]]):
    """``given``: the own block, and a place for each rank's block."""

    __slots__ = ()

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        reads = [(rank, lengths[rank]) for rank in shape.others]
        longest, total = max(lengths), sum(lengths)
        super().__init__(shape, fingerprint, lengths[shape.rank], reads, total, longest)

    def fill(self, slot: memoryview, given: tuple[DataView, BlocksView]) -> None:
        copy(slot[: self.nbytes], given[0].view)

    def finish(self, number: int, slots: Views, given: tuple[DataView, BlocksView]) -> bool:
        own, places = given[0], given[1].views
        copy(places[self.rank], own.view)
        for rank, length in self.reads:
            copy(places[rank], slots[rank][:length])
        return True

    def _schedule(self, shm: ShmContext, given: tuple[DataView, BlocksView]) -> Iterator[Step]:
        blocks = list(given[1].views)
        blocks[self.rank] = given[0].view
        yield from all_gather_chunks(shm, blocks)
        own, place = given[0].view, given[1].views[self.rank]
        for start in range(0, len(own), STEP):
            piece = slice(start, start + STEP)
            yield RELEASE, self.rank, 0, [(place[piece], own[piece])], ()

    def _memory(self, given: tuple[DataView, BlocksView]) -> tuple[CachedView, object]:
        return given


class ReduceScatterPlan(SlotPlan[tuple[BlocksView, DataView]]):
    """``given``: a block for each rank, and the place for the reduced own block."""

    __slots__ = ("_mine", "_starts", "reduce")

    def __init__(
        self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int], reduce: Reduction
    ) -> None:
        self.reduce = reduce
        self._starts = starts = offsets_of(lengths)
        self._mine = slice(starts[shape.rank], starts[shape.rank + 1])
        total = starts[-1]
        super().__init__(shape, fingerprint, total, [(rank, total) for rank in shape.others], total)
        self.fits = self.fits and not reduce.needs_prepare
        self.in_chunks = self.in_chunks and not reduce.needs_prepare

    def fill(self, slot: memoryview, given: tuple[BlocksView, DataView]) -> None:
        for start, block in zip(self._starts, given[0].views, strict=False):
            copy(slot[start : start + len(block)], block)

    def finish(self, number: int, slots: Views, given: tuple[BlocksView, DataView]) -> bool:
        place = given[1]
        steps = place.steps[number]
        if steps is None:
            operands = [slot[self._mine] for slot in slots]
            steps = [*in_order(self.reduce, operands, -1, place.view)]
            steps = place.steps[number] = [*steps, *end_of(self.reduce, place.view)]
        for step in steps:
            step()
        return True

    def _schedule(self, shm: ShmContext, given: tuple[BlocksView, DataView]) -> Iterator[Step]:
        blocks, place = given[0].views, given[1].view
        yield from reduce_scatter_chunks(shm, blocks, place, self.reduce)
        yield from finish_gradually(shm, self.reduce, place)

    def _memory(self, given: tuple[BlocksView, DataView]) -> tuple[CachedView, object]:
        return given[::-1]


class AllToAllPlan(SlotPlan[tuple[BlocksView, BlocksView]]):
    """``given``: a block for each rank, and a place for each rank's block."""

    __slots__ = ("_longest", "_size", "_starts")

    def __init__(self, shape: GroupShape, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        self._size = shape.size
        self._starts = starts = starts_of(lengths)
        reads = [(rank, -1) for rank in shape.others]  # only that rank knows its length
        super().__init__(shape, fingerprint, starts[-1], reads, starts[-1])
        self.fits = shape.shares and self.room <= LARGEST_SLOT_BYTES
        self.in_chunks = shape.shares and not self.fits
        self.head = starts[0]
        self._longest = max(lengths)

    def fill(self, slot: memoryview, given: tuple[BlocksView, BlocksView]) -> None:
        write_blocks(slot, given[0].views, self._starts)

    def finish(self, number: int, slots: Views, given: tuple[BlocksView, BlocksView]) -> bool:
        inputs, places = given[0].views, given[1].views
        own = self.rank
        found = []
        for rank, _ in self.reads:
            slot = slots[rank]
            lengths, block = read_blocks(slot, own, self._size, len(slot))
            if block is None or lengths[own] != len(places[rank]):
                return False
            found.append((places[rank], block))
        copy(places[own], inputs[own])
        for place, block in found:
            copy(place, block)
        return True

    def fill_head(self, slot: memoryview, given: tuple[BlocksView, BlocksView]) -> None:
        write_blocks(slot, (), self._starts)

    def agrees(self, slots: Views, given: tuple[BlocksView, BlocksView]) -> bool:
        places = given[1].views
        for rank in self.shape.others:
            lengths = lengths_of(slots[rank], self._size)
            # Blocks of other lengths need other steps: the general path handles them.
            if lengths[self.rank] != len(places[rank]) or max(lengths) != self._longest:
                return False
        return True

    def _schedule(self, shm: ShmContext, given: tuple[BlocksView, BlocksView]) -> Iterator[Step]:
        inputs, places = given[0].views, given[1].views
        longest = self._longest
        return all_to_all_chunks(shm, inputs, places, self.shape.others, longest, longest)

    def _memory(self, given: tuple[BlocksView, BlocksView]) -> tuple[CachedView, object]:
        return given[::-1]
