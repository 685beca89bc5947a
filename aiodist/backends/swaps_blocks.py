"""As `swaps`, of the collectives with a block for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.backends.programs import Blocks, Data, Kept
from aiodist.backends.swaps import Seat, SmallCall, Views, end_of, finish_in_turns
from aiodist.backends.turns import STEP
from aiodist.collectives.all_gather_shared import all_gather_chunks
from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.all_to_all_shared import all_to_all_chunks
from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of
from aiodist.collectives.moves import LET_GO, Move
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks
from aiodist.collectives.slot_blocks import lengths_of, read_blocks, starts_of, write_blocks
from aiodist.copying import copy
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shared.area import LARGEST_SLOT_BYTES
from aiodist.tensors import Reduction


class SmallAllGather(SmallCall[tuple[Data, Blocks]]):
    """Given: the own block, and a place for each rank's."""

    __slots__ = ()

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        reads = [(rank, lengths[rank]) for rank in seat.others]
        longest, total = max(lengths), sum(lengths)
        super().__init__(seat, fingerprint, lengths[seat.rank], reads, total, longest)

    def fill(self, slot: memoryview, given: tuple[Data, Blocks]) -> None:
        copy(slot[: self.nbytes], given[0].view)

    def finish(self, number: int, slots: Views, given: tuple[Data, Blocks]) -> bool:
        own, places = given[0], given[1].views
        copy(places[self.rank], own.view)
        for rank, length in self.reads:
            copy(places[rank], slots[rank][:length])
        return True

    def _moves(self, board: Board, given: tuple[Data, Blocks]) -> Iterator[Move]:
        blocks = list(given[1].views)
        blocks[self.rank] = given[0].view
        yield from all_gather_chunks(board, blocks)
        own, place = given[0].view, given[1].views[self.rank]
        for start in range(0, len(own), STEP):
            piece = slice(start, start + STEP)
            yield LET_GO, self.rank, 0, [(place[piece], own[piece])], ()

    def _memory(self, given: tuple[Data, Blocks]) -> tuple[Kept, object]:
        return given


class SmallReduceScatter(SmallCall[tuple[Blocks, Data]]):
    """Given: a block for each rank, and where the reduced own one goes."""

    __slots__ = ("_mine", "_starts", "reduce")

    def __init__(
        self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int], reduce: Reduction
    ) -> None:
        self.reduce = reduce
        self._starts = starts = offsets_of(lengths)
        self._mine = slice(starts[seat.rank], starts[seat.rank + 1])
        total = starts[-1]
        super().__init__(seat, fingerprint, total, [(rank, total) for rank in seat.others], total)
        self.fits = self.fits and not reduce.needs_prepare
        self.in_chunks = self.in_chunks and not reduce.needs_prepare

    def fill(self, slot: memoryview, given: tuple[Blocks, Data]) -> None:
        for start, block in zip(self._starts, given[0].views, strict=False):
            copy(slot[start : start + len(block)], block)

    def finish(self, number: int, slots: Views, given: tuple[Blocks, Data]) -> bool:
        place = given[1]
        steps = place.steps[number]
        if steps is None:
            operands = [slot[self._mine] for slot in slots]
            steps = [*in_order(self.reduce, operands, -1, place.view)]
            steps = place.steps[number] = [*steps, *end_of(self.reduce, place.view)]
        for step in steps:
            step()
        return True

    def _moves(self, board: Board, given: tuple[Blocks, Data]) -> Iterator[Move]:
        blocks, place = given[0].views, given[1].view
        yield from reduce_scatter_chunks(board, blocks, place, self.reduce)
        yield from finish_in_turns(board, self.reduce, place)

    def _memory(self, given: tuple[Blocks, Data]) -> tuple[Kept, object]:
        return given[::-1]


class SmallAllToAll(SmallCall[tuple[Blocks, Blocks]]):
    """Given: a block for each rank, and a place for each rank's."""

    __slots__ = ("_longest", "_size", "_starts")

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        self._size = seat.size
        self._starts = starts = starts_of(lengths)
        reads = [(rank, -1) for rank in seat.others]  # who alone knows how much it has
        super().__init__(seat, fingerprint, starts[-1], reads, starts[-1])
        self.fits = seat.shares and self.room <= LARGEST_SLOT_BYTES
        self.in_chunks = seat.shares and not self.fits
        self.head = starts[0]
        self._longest = max(lengths)

    def fill(self, slot: memoryview, given: tuple[Blocks, Blocks]) -> None:
        write_blocks(slot, given[0].views, self._starts)

    def finish(self, number: int, slots: Views, given: tuple[Blocks, Blocks]) -> bool:
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

    def fill_head(self, slot: memoryview, given: tuple[Blocks, Blocks]) -> None:
        write_blocks(slot, (), self._starts)

    def agrees(self, slots: Views, given: tuple[Blocks, Blocks]) -> bool:
        places = given[1].views
        for rank in self.seat.others:
            lengths = lengths_of(slots[rank], self._size)
            # Blocks of other lengths take other steps, and are left to the usual way.
            if lengths[self.rank] != len(places[rank]) or max(lengths) != self._longest:
                return False
        return True

    def _moves(self, board: Board, given: tuple[Blocks, Blocks]) -> Iterator[Move]:
        inputs, places = given[0].views, given[1].views
        longest = self._longest
        return all_to_all_chunks(board, inputs, places, self.seat.others, longest, longest)

    def _memory(self, given: tuple[Blocks, Blocks]) -> tuple[Kept, object]:
        return given[::-1]
