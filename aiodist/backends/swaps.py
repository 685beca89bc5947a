"""What equal calls of each collective in memory have in common: a `groups.straight.Direct` for each.

Each does with slots what the algorithm "slots" of `aiodist.collectives` does, to the bit; what is
too long for them is left to the other algorithms there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

from aiodist.backends.turns import STEP
from aiodist.collectives import shared
from aiodist.collectives.all_reduce_slots import reduce_in_order
from aiodist.collectives.board import Board
from aiodist.collectives.layout import offsets_of
from aiodist.collectives.select import Rules, select
from aiodist.collectives.slot_blocks import read_blocks, starts_of, write_blocks
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shared.area import LARGEST_SLOT_BYTES, SLOTS
from aiodist.tensors import Reduction, scratch

PIECE_BYTES = 128 << 10
"""Of what one rank puts up and others copy: as much is there before they begin."""

Run = Coroutine[Any, Any, None]
Views = Sequence[memoryview]
Given = TypeVar("Given", contravariant=True)


class Seat:
    """Where a rank sits in its group, and the table by which all of its ranks choose."""

    __slots__ = ("meets", "others", "rank", "rules", "shares", "size")

    def __init__(self, rank: int, size: int, shares: bool, rules: Rules) -> None:
        """``shares``: whether the group's collectives run in memory where that is shared."""
        self.rank = rank
        self.size = size
        self.shares = shares
        self.rules = rules
        # The next one first, so that not all begin with the same.
        self.others = [(rank + distance) % size for distance in range(1, size)]
        self.meets = [(other, 0) for other in self.others]


class SmallCall(ABC, Generic[Given]):
    """What equal calls of one collective need.

    ``fits``: whether it goes into slots, of ``room``; ``in_chunks``: whether it goes in chunks, and
    `run` does it.
    """

    __slots__ = (
        "fingerprint",
        "fits",
        "in_chunks",
        "nbytes",
        "pieces",
        "rank",
        "reads",
        "room",
        "seat",
        "worth",
    )

    def __init__(
        self,
        seat: Seat,
        fingerprint: Fingerprint,
        nbytes: int,
        reads: Sequence[tuple[int, int]],
        total: int,
        room: int | None = None,
    ) -> None:
        """``nbytes`` and ``reads`` as in `Swap`. ``total``: bytes, as `select` counts them.

        ``room``: as in `Swap`, where not ``total``.
        """
        self.seat = seat
        self.rank = seat.rank
        self.fingerprint = fingerprint
        self.nbytes = nbytes
        self.worth = nbytes
        self.pieces: Sequence[slice] = ()
        self.reads = reads
        self.room = total if room is None else room
        self.fits = seat.shares and (
            select(fingerprint.operation, seat.size, total, rules=seat.rules).algorithm == "slots"
        )
        self.in_chunks = seat.shares and not self.fits

    @property
    def is_direct(self) -> bool:
        """Whether it may be carried out before anything is made for it."""
        return self.fits or self.in_chunks

    @property
    def meets(self) -> Sequence[tuple[int, int]]:
        """As `Chunked.meets`."""
        return self.seat.meets

    @abstractmethod
    def fill(self, slot: memoryview, given: Given) -> None:
        """As `Swap.fill`."""

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """As `Swap.fill_piece`."""
        raise NotImplementedError(f"{self.fingerprint.operation} puts up nothing in pieces")

    def finish_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """As `Swap.finish_piece`."""
        raise NotImplementedError(f"{self.fingerprint.operation} puts up nothing in pieces")

    @abstractmethod
    def finish(self, number: int, slots: Views, given: Given) -> bool:
        """As `Swap.finish`."""

    def run(self, board: Board, given: Given) -> Run:
        """As `Chunked.run`."""
        raise NotImplementedError(f"{self.fingerprint.operation} does not go in chunks here")


class Data:
    """The memory of one tensor, and what an operation has made for it so far."""

    __slots__ = ("steps", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.steps: list[Sequence[Callable[[], object]] | None] = [None] * SLOTS
        """By slot: what reduces the ranks' data into this."""


class _OneTensor(SmallCall[Data]):
    """Given: the data, which is put up as it is."""

    __slots__ = ("length",)

    def __init__(
        self,
        seat: Seat,
        fingerprint: Fingerprint,
        length: int,
        puts_up: bool,
        reads: Sequence[int],
    ) -> None:
        """``length``: bytes of the tensor. ``reads``: the ranks whose slots this one reads."""
        self.length = length
        own = length if puts_up else -1
        super().__init__(seat, fingerprint, own, [(rank, length) for rank in reads], length)

    def fill(self, slot: memoryview, given: Data) -> None:
        slot[: self.length] = given.view


class SmallBarrier(SmallCall[None]):
    """Given: nothing."""

    __slots__ = ()

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat, Fingerprint("barrier"), 0, [(r, 0) for r in seat.others], 0)

    def fill(self, slot: memoryview, given: None) -> None:
        """A flag is all."""

    def finish(self, number: int, slots: Views, given: None) -> bool:
        return True


class SmallBroadcast(_OneTensor):
    """The root is done when it has put up the data. Others copy out while it copies in."""

    __slots__ = ("_root",)

    def __init__(self, seat: Seat, fingerprint: Fingerprint, length: int, root: int) -> None:
        self._root = root
        is_root = seat.rank == root
        super().__init__(seat, fingerprint, length, is_root, () if is_root else (root,))
        if length > PIECE_BYTES:
            stops = [*range(PIECE_BYTES, length, PIECE_BYTES), length]
            self.pieces = [slice(start, stop) for start, stop in pairwise([0, *stops])]
            self.worth = PIECE_BYTES

    def fill_piece(self, piece: slice, slot: memoryview, given: Data) -> None:
        slot[piece] = given.view[piece]

    def finish_piece(self, piece: slice, slot: memoryview, given: Data) -> None:
        given.view[piece] = slot[piece]

    def finish(self, number: int, slots: Views, given: Data) -> bool:
        if self.rank != self._root:
            given.view[:] = slots[self._root][: self.length]
        return True

    def run(self, board: Board, given: Data) -> Run:
        return shared.broadcast(board, self._root, given.view, self.seat.rules)


class _Reducing(_OneTensor):
    """The data is reduced in place, in the order of the ranks."""

    __slots__ = ("reduce",)

    def __init__(
        self,
        seat: Seat,
        fingerprint: Fingerprint,
        length: int,
        puts_up: bool,
        reads: Sequence[int],
        reduce: Reduction,
    ) -> None:
        self.reduce = reduce
        super().__init__(seat, fingerprint, length, puts_up, reads)
        self.fits = self.fits and not reduce.needs_prepare
        self.in_chunks = self.in_chunks and not reduce.needs_prepare

    def finish(self, number: int, slots: Views, given: Data) -> bool:
        if self.reads:
            steps = given.steps[number]
            if steps is None:
                steps = given.steps[number] = self._steps(slots, given.view)
            for step in steps:
                step()
        return True

    def _steps(self, slots: Views, data: memoryview) -> Sequence[Callable[[], object]]:
        operands = [slot[: self.length] for slot in slots]
        rehearsal = Rehearsal(self.reduce)
        if self.nbytes < 0:  # its own is not in the slot
            if self.rank < 2:
                operands[self.rank] = data
            else:  # the first operands overwrite it
                operands[self.rank] = own = scratch(self.length)
                rehearsal.steps.append(partial(copy, own, data))
        reduce_in_order(rehearsal, operands, self.rank, data)
        return rehearsal.to_the_end(data)


class SmallReduce(_Reducing):
    """The root reads all; the others are done when theirs is put up."""

    __slots__ = ("_root",)

    def __init__(
        self, seat: Seat, fingerprint: Fingerprint, length: int, root: int, reduce: Reduction
    ) -> None:
        self._root = root
        is_root = seat.rank == root
        reads = seat.others if is_root else ()
        super().__init__(seat, fingerprint, length, not is_root, reads, reduce)

    async def run(self, board: Board, given: Data) -> None:
        await shared.reduce(board, self._root, given.view, self.reduce, self.seat.rules)
        if self.rank == self._root:
            await _finish(board, self.reduce, given.view)


class SmallAllReduce(_Reducing):
    """All read all."""

    __slots__ = ()

    def __init__(
        self, seat: Seat, fingerprint: Fingerprint, length: int, reduce: Reduction
    ) -> None:
        super().__init__(seat, fingerprint, length, True, seat.others, reduce)

    async def run(self, board: Board, given: Data) -> None:
        await shared.all_reduce(board, given.view, self.reduce, self.seat.rules)
        await _finish(board, self.reduce, given.view)


class SmallAllGather(SmallCall[tuple[Data, Views]]):
    """Given: the own block, and a place for each rank's."""

    __slots__ = ()

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        reads = [(rank, lengths[rank]) for rank in seat.others]
        longest, total = max(lengths), sum(lengths)
        super().__init__(seat, fingerprint, lengths[seat.rank], reads, total, longest)

    def fill(self, slot: memoryview, given: tuple[Data, Views]) -> None:
        slot[: self.nbytes] = given[0].view

    def finish(self, number: int, slots: Views, given: tuple[Data, Views]) -> bool:
        own, places = given
        places[self.rank][:] = own.view
        for rank, length in self.reads:
            places[rank][:] = slots[rank][:length]
        return True

    async def run(self, board: Board, given: tuple[Data, Views]) -> None:
        own, places = given
        for start in range(0, len(own.view), STEP):
            places[self.rank][start : start + STEP] = own.view[start : start + STEP]
            await board.turn()
        await shared.all_gather(board, places, self.seat.rules)


class SmallReduceScatter(SmallCall[tuple[Views, Data]]):
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

    def fill(self, slot: memoryview, given: tuple[Views, Data]) -> None:
        for start, block in zip(self._starts, given[0], strict=False):
            slot[start : start + len(block)] = block

    def finish(self, number: int, slots: Views, given: tuple[Views, Data]) -> bool:
        place = given[1]
        steps = place.steps[number]
        if steps is None:
            rehearsal = Rehearsal(self.reduce)
            first, second, *others = (slot[self._mine] for slot in slots)
            rehearsal.into(first, second, place.view)
            for other in others:
                rehearsal(place.view, other)
            steps = place.steps[number] = rehearsal.to_the_end(place.view)
        for step in steps:
            step()
        return True

    async def run(self, board: Board, given: tuple[Views, Data]) -> None:
        blocks, place = given
        await shared.reduce_scatter(board, blocks, place.view, self.reduce, self.seat.rules)
        await _finish(board, self.reduce, place.view)


class SmallAllToAll(SmallCall[tuple[Views, Views]]):
    """Given: a block for each rank, and a place for each rank's."""

    __slots__ = ("_size", "_starts")

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        self._size = seat.size
        self._starts = starts = starts_of(lengths)
        reads = [(rank, -1) for rank in seat.others]  # who alone knows how much it has
        super().__init__(seat, fingerprint, starts[-1], reads, starts[-1])
        self.fits = seat.shares and starts[-1] <= LARGEST_SLOT_BYTES
        self.in_chunks = False  # its slots say how much there is

    def fill(self, slot: memoryview, given: tuple[Views, Views]) -> None:
        write_blocks(slot, given[0], self._starts)

    def finish(self, number: int, slots: Views, given: tuple[Views, Views]) -> bool:
        inputs, places = given
        own = self.rank
        found = []
        for rank, _ in self.reads:
            slot = slots[rank]
            lengths, block = read_blocks(slot, own, self._size, len(slot))
            if block is None or lengths[own] != len(places[rank]):
                return False
            found.append((places[rank], block))
        places[own][:] = inputs[own]
        for place, block in found:
            place[:] = block
        return True


class Rehearsal:
    """A `Reduction` that does nothing yet: it notes the steps, bound to the memory they are about."""

    def __init__(self, reduce: Reduction) -> None:
        self.itemsize = reduce.itemsize
        self.steps: list[Callable[[], object]] = []
        self._reduce = reduce

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        self.into(*((other, acc) if other_first else (acc, other)), acc)

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        self.steps.append(self._reduce.of(a, b, out))

    def to_the_end(self, out: memoryview) -> Sequence[Callable[[], object]]:
        """All steps, the last of which may be one that ends the reduction of ``out``."""
        if self._reduce.needs_finish:
            self.steps.append(partial(self._reduce.finish, out))
        return self.steps


async def _finish(board: Board, reduce: Reduction, data: memoryview) -> None:
    """What is left to do when ``data`` has been reduced over all ranks."""
    if reduce.needs_finish:
        step = max(STEP // reduce.itemsize, 1) * reduce.itemsize
        for start in range(0, len(data), step):
            await board.turn()
            reduce.finish(data[start : start + step])


def copy(into: memoryview, data: memoryview) -> None:
    """Copy bytes."""
    into[:] = data
