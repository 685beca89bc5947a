"""Gather and scatter over shared memory: the root copies what others publish, or the reverse.

Only the root knows all lengths. In a gather each rank publishes its length in a slot, with its data
where that fits. Longer data follows in chunks, which only the root reads. In a scatter the root's slot
holds the lengths of all blocks. It holds the blocks as well if all of them fit; otherwise they follow
in chunks that are cut into n parts. Bytes: everything is written once and read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiodist.collectives.broadcast_shared import read_from
from aiodist.collectives.partition import segments_of
from aiodist.collectives.schedule import (
    ALL_STEPS,
    READ,
    RELEASE,
    WRITE,
    Schedule,
    Step,
    part_bytes,
    write_parts,
)
from aiodist.collectives.shm_exchange import Exchange, UnexpectedLength, others_of
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.slot_blocks import lengths_of, starts_of, write_blocks
from aiodist.collectives.views import BlocksView, DataView
from aiodist.copying import copy


class GatherRoot(Exchange[tuple[DataView, BlocksView]]):
    """The root of a gather: its own data, and a place for each rank's."""

    __slots__ = ()

    def __init__(self, rank: int, size: int, lengths: Sequence[int]) -> None:
        reads = [(other, lengths[other]) for other in others_of(rank, size)]
        super().__init__(rank, size, 0, reads)

    def finish(
        self, number: int, slots: Sequence[memoryview], given: tuple[DataView, BlocksView]
    ) -> bool:
        places, more = given[1].views, False
        copy(places[self.rank], given[0].view)
        for other, nbytes in self.reads:
            if nbytes <= len(slots[other]):
                copy(places[other], slots[other][:nbytes])
            else:
                more = True
        return more

    def schedule(
        self, layout: ShmLayout, slots: Sequence[memoryview], given: tuple[DataView, BlocksView]
    ) -> Schedule:
        places = given[1].views
        long = {other: places[other] for other, n in self.reads if n > layout.slot_bytes}
        return _gathered(layout, long)


class GatherLeaf(Exchange[DataView]):
    """Another rank of a gather: its data."""

    __slots__ = ()

    def __init__(self, rank: int, size: int, root: int, nbytes: int, slot_bytes: int) -> None:
        # Long data goes when the root is in the same operation: it will read.
        super().__init__(rank, size, nbytes, ((root, 0),) if nbytes > slot_bytes else ())

    def fill(self, slot: memoryview, given: DataView) -> None:
        if not self.reads:
            copy(slot[: self.nbytes], given.view)

    def finish(self, number: int, slots: Sequence[memoryview], given: DataView) -> bool:
        return bool(self.reads)

    def schedule(self, layout: ShmLayout, slots: Sequence[memoryview], given: DataView) -> Schedule:
        return _sent(layout, given.view)


def _sent(shm: ShmLayout, data: memoryview) -> Iterator[Step]:
    rank, width = shm.rank, shm.chunk_bytes
    yield RELEASE, rank, ALL_STEPS, (), ()  # only the root reads
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        yield WRITE, rank, step, [(shm.chunk(rank, step)[: len(part)], part)], ()
        yield RELEASE, rank, 0, (), ()


def _gathered(shm: ShmLayout, places: Mapping[int, memoryview]) -> Iterator[Step]:
    width = shm.chunk_bytes
    for step in range(segments_of(max(map(len, places.values())), width)):
        for other, place in places.items():
            part = place[step * width : (step + 1) * width]
            if len(part):
                yield READ, other, step, [(part, shm.chunk(other, step)[: len(part)])], ()
        yield RELEASE, shm.rank, step + 1, (), ()


class ScatterRoot(Exchange[tuple[BlocksView, DataView]]):
    """The root of a scatter: a block for each rank, and the place for its own."""

    __slots__ = ("_fits", "_lengths", "_starts")

    def __init__(self, rank: int, size: int, lengths: Sequence[int], slot_bytes: int) -> None:
        self._lengths = lengths
        self._starts = starts = starts_of(lengths)
        self._fits = starts[-1] <= slot_bytes
        super().__init__(rank, size, starts[-1] if self._fits else starts[0], ())

    def fill(self, slot: memoryview, given: tuple[BlocksView, DataView]) -> None:
        blocks = given[0].views if self._fits else ()
        write_blocks(slot, self._lengths, blocks, self._starts, self.rank)

    def finish(
        self, number: int, slots: Sequence[memoryview], given: tuple[BlocksView, DataView]
    ) -> bool:
        copy(given[1].view, given[0].views[self.rank])
        return not self._fits

    def schedule(
        self, layout: ShmLayout, slots: Sequence[memoryview], given: tuple[BlocksView, DataView]
    ) -> Schedule:
        return _scattered(layout, given[0].views)


class ScatterLeaf(Exchange[DataView]):
    """Another rank of a scatter: the place for its block."""

    __slots__ = ("_root",)

    def __init__(self, rank: int, size: int, root: int) -> None:
        super().__init__(rank, size, -1, read_from(rank, root, -1))
        self._root = root

    def finish(self, number: int, slots: Sequence[memoryview], given: DataView) -> bool:
        slot = slots[self._root]
        lengths = lengths_of(slot, self.size)
        if lengths[self.rank] != len(given.view):
            raise UnexpectedLength(self._root, lengths[self.rank], len(given.view))
        starts = starts_of(lengths)
        if starts[-1] > len(slot):
            return True
        copy(given.view, slot[starts[self.rank] : starts[self.rank + 1]])
        return False

    def schedule(self, layout: ShmLayout, slots: Sequence[memoryview], given: DataView) -> Schedule:
        return _received(layout, self._root, given.view)


def _scattered(shm: ShmLayout, blocks: Sequence[memoryview]) -> Iterator[Step]:
    width, others = part_bytes(shm), others_of(shm.rank, shm.size)
    for step in range(segments_of(max(len(blocks[other]) for other in others), width)):
        yield write_parts(shm, step, width, blocks, others)
        yield RELEASE, shm.rank, 0, (), ()


def _received(shm: ShmLayout, root: int, out: memoryview) -> Iterator[Step]:
    width = part_bytes(shm)
    mine = shm.rank * width
    for step in range(segments_of(len(out), width)):
        part = out[step * width : (step + 1) * width]
        theirs = shm.chunk(root, step)[mine : mine + len(part)]
        yield READ, root, step, [(part, theirs)], ()
        yield RELEASE, shm.rank, step + 1, (), ()
