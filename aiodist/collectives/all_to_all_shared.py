"""All-to-all over shared memory: each rank publishes what it has for everyone, each copies what is its own.

First a slot with the n lengths, since ranks do not know each other's; blocks that fit into the slot
behind them stand there, and that is all: one step. Else a chunk is cut into n parts, one for each
reader, and there are as many steps as the longest block of all needs. Bytes: a rank writes the
blocks of all others, and reads one block of each.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from aiodist.collectives.partition import segments_of
from aiodist.collectives.schedule import READ, RELEASE, Schedule, Step, part_bytes, write_parts
from aiodist.collectives.shm_exchange import (
    Exchange,
    ShmContext,
    UnexpectedLength,
    all_others,
    not_kept,
    others_of,
)
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.slot_blocks import lengths_of, starts_of, write_blocks
from aiodist.collectives.views import BlocksView
from aiodist.copying import copy

Both = tuple[BlocksView, BlocksView]


class AllToAllExchange(Exchange[Both]):
    """All-to-all: a block for each rank, and a place for each rank's block.

    ``fits``: whether this rank's blocks go into its slot. Others decide that for theirs.
    """

    __slots__ = ("_keep", "_lengths", "_longest", "_starts", "fits")

    def __init__(
        self,
        rank: int,
        size: int,
        lengths: Sequence[int],
        fits: bool,
        keep: Callable[[Both, Iterator[Step]], Schedule] = not_kept,
    ) -> None:
        """``keep``: returns the steps of blocks of equal lengths on all ranks, or cached ones."""
        self._lengths = tuple(lengths)
        self._starts = starts = starts_of(lengths)
        nbytes = starts[-1] if fits else starts[0]
        super().__init__(rank, size, nbytes, all_others(rank, size, -1))
        self.fits = fits
        self._longest = 0 if fits else max(lengths)
        self._keep = keep

    def fill(self, slot: memoryview, given: Both) -> None:
        blocks = given[0].views if self.fits else ()
        write_blocks(slot, self._lengths, blocks, self._starts, self.rank)

    def finish(self, number: int, slots: Sequence[memoryview], given: Both) -> bool:
        rank, places = self.rank, given[1].views
        found, more = [], not self.fits
        for other, _ in self.reads:
            slot, place = slots[other], places[other]
            lengths = lengths_of(slot, self.size)
            if lengths[rank] != len(place):
                raise UnexpectedLength(other, lengths[rank], len(place))
            starts = self._starts if lengths == self._lengths else starts_of(lengths)
            if starts[-1] > len(slot):
                more = True
            else:
                found.append((place, slot[starts[rank] : starts[rank + 1]]))
        if self.fits:
            copy(places[rank], given[0].views[rank])
        for place, block in found:
            copy(place, block)
        return more

    def schedule(self, layout: ShmLayout, slots: Sequence[memoryview], given: Both) -> Schedule:
        in_chunks, longest = [], self._longest
        for other, _ in self.reads:
            lengths = lengths_of(slots[other], self.size)
            if starts_of(lengths)[-1] > layout.slot_bytes:
                in_chunks.append(other)
                longest = max(longest, *lengths)
        inputs, outputs = given[0].views, given[1].views
        steps = all_to_all_chunks(layout, inputs, outputs, in_chunks, self._longest, longest)
        # Equal calls take equal steps where all have blocks as long as this rank's longest.
        is_even = longest == self._longest and len(in_chunks) == len(self.reads)
        return self._keep(given, steps) if is_even else steps


def all_to_all_chunks(
    shm: ShmLayout,
    inputs: Sequence[memoryview],
    outputs: Sequence[memoryview],
    in_chunks: Sequence[int],
    own_longest: int,
    longest: int,
) -> Iterator[Step]:
    """What is left of it where some have longer blocks than a slot holds: ``in_chunks``, of the others.

    ``own_longest``: the longest block of this rank's, 0 where all of them went into its slot.
    ``longest``: of all that are left.
    """
    rank, width = shm.rank, part_bytes(shm)
    others = others_of(rank, shm.size)
    mine = slice(rank * width, (rank + 1) * width)
    for step in range(segments_of(longest, width) + 1):
        if step * width < own_longest:
            yield write_parts(shm, step, width, inputs, others)
        if step:
            before = slice((step - 1) * width, step * width)
            for other in in_chunks:
                place = outputs[other][before]
                if len(place):
                    theirs = shm.chunk(other, step - 1)[mine][: len(place)]
                    yield READ, other, step - 1, [(place, theirs)], ()
            own = [(outputs[rank][before], inputs[rank][before])] if own_longest else ()
            yield RELEASE, rank, step, own, ()


def all_to_all_shared(
    shm: ShmContext, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> Coroutine[Any, Any, None]:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    lengths = [len(block) for block in inputs]
    fits = starts_of(lengths)[-1] <= shm.slot_bytes
    exchange = AllToAllExchange(shm.rank, shm.size, lengths, fits)
    return shm.run(exchange, (BlocksView(inputs), BlocksView(outputs)))
