"""What equal calls of each small collective have in common: a `groups.swap.Swap` for each kind.

Each does with slots what the algorithm "slots" of `aiodist.collectives` does, to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from aiodist.collectives.all_reduce_slots import reduce_in_order
from aiodist.collectives.layout import offsets_of
from aiodist.collectives.select import Rules, select
from aiodist.collectives.slot_blocks import read_blocks, starts_of, write_blocks
from aiodist.groups.fingerprint import Fingerprint
from aiodist.shared.area import SLOT_BYTES
from aiodist.tensors import Reduction

Views = Sequence[memoryview]
Given = TypeVar("Given", contravariant=True)


class Seat:
    """Where a rank sits in its group, and the table by which all of its ranks choose."""

    __slots__ = ("others", "rank", "rules", "shares", "size")

    def __init__(self, rank: int, size: int, shares: bool, rules: Rules) -> None:
        """``shares``: whether the group's collectives run in memory where that is shared."""
        self.rank = rank
        self.size = size
        self.shares = shares
        self.rules = rules
        # The next one first, so that not all begin with the same.
        self.others = [(rank + distance) % size for distance in range(1, size)]


class SmallCall(ABC, Generic[Given]):
    """What equal calls of one collective need. ``fits``: whether it goes into slots."""

    __slots__ = ("fingerprint", "fits", "nbytes", "rank", "reads")

    def __init__(
        self,
        seat: Seat,
        fingerprint: Fingerprint,
        nbytes: int,
        reads: Sequence[tuple[int, int]],
        total: int,
    ) -> None:
        """``nbytes`` and ``reads`` as in `Swap`. ``total``: bytes, as `select` counts them."""
        self.rank = seat.rank
        self.fingerprint = fingerprint
        self.nbytes = nbytes
        self.reads = reads
        self.fits = seat.shares and (
            select(fingerprint.operation, seat.size, total, rules=seat.rules).algorithm == "slots"
        )

    @abstractmethod
    def fill(self, slot: memoryview, given: Given) -> None:
        """As `Swap.fill`."""

    @abstractmethod
    def finish(self, slots: Views, given: Given) -> bool:
        """As `Swap.finish`."""


class _OneView(SmallCall[memoryview]):
    """Given: the data, which is put up as it is."""

    __slots__ = ()

    def fill(self, slot: memoryview, given: memoryview) -> None:
        slot[: self.nbytes] = given


class SmallBarrier(SmallCall[None]):
    """Given: nothing."""

    __slots__ = ()

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat, Fingerprint("barrier"), 0, [(r, 0) for r in seat.others], 0)

    def fill(self, slot: memoryview, given: None) -> None:
        """A flag is all."""

    def finish(self, slots: Views, given: None) -> bool:
        return True


class SmallBroadcast(_OneView):
    """Given: the data. The root is done when it has put it up."""

    __slots__ = ("_length", "_root")

    def __init__(self, seat: Seat, fingerprint: Fingerprint, length: int, root: int) -> None:
        self._root = root
        self._length = length
        is_root = seat.rank == root
        super().__init__(
            seat,
            fingerprint,
            length if is_root else -1,
            [] if is_root else [(root, length)],
            length,
        )

    def finish(self, slots: Views, given: memoryview) -> bool:
        if self.rank != self._root:
            given[:] = slots[self._root][: self._length]
        return True


class SmallReduce(_OneView):
    """Given: the data, on the root reduced in place. The others are done when theirs is put up."""

    __slots__ = ("_length", "_root", "reduce")

    def __init__(
        self, seat: Seat, fingerprint: Fingerprint, length: int, root: int, reduce: Reduction
    ) -> None:
        self._root = root
        self._length = length
        self.reduce = reduce
        is_root = seat.rank == root
        super().__init__(
            seat,
            fingerprint,
            -1 if is_root else length,
            [(rank, length) for rank in seat.others] if is_root else [],
            length,
        )
        self.fits = self.fits and not reduce.needs_prepare

    def finish(self, slots: Views, given: memoryview) -> bool:
        root = self._root
        if self.rank == root:
            operands = [slot[: self._length] for slot in slots]
            # The first operands may overwrite the root's own, unless it is one of them.
            operands[root] = given if root < 2 else memoryview(given.tobytes())
            _reduce(self.reduce, operands, root, given)
        return True


class SmallAllReduce(_OneView):
    """Given: the data, reduced in place."""

    __slots__ = ("reduce",)

    def __init__(
        self, seat: Seat, fingerprint: Fingerprint, length: int, reduce: Reduction
    ) -> None:
        self.reduce = reduce
        reads = [(rank, length) for rank in seat.others]
        super().__init__(seat, fingerprint, length, reads, length)
        self.fits = self.fits and not reduce.needs_prepare

    def finish(self, slots: Views, given: memoryview) -> bool:
        nbytes = self.nbytes
        _reduce(self.reduce, [slot[:nbytes] for slot in slots], self.rank, given)
        return True


class SmallAllGather(SmallCall[tuple[memoryview, Views]]):
    """Given: the own block, and a place for each rank's."""

    __slots__ = ()

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        reads = [(rank, lengths[rank]) for rank in seat.others]
        super().__init__(seat, fingerprint, lengths[seat.rank], reads, sum(lengths))

    def fill(self, slot: memoryview, given: tuple[memoryview, Views]) -> None:
        slot[: self.nbytes] = given[0]

    def finish(self, slots: Views, given: tuple[memoryview, Views]) -> bool:
        own, places = given
        places[self.rank][:] = own
        for rank, length in self.reads:
            places[rank][:] = slots[rank][:length]
        return True


class SmallReduceScatter(SmallCall[tuple[Views, memoryview]]):
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

    def fill(self, slot: memoryview, given: tuple[Views, memoryview]) -> None:
        for start, block in zip(self._starts, given[0], strict=False):
            slot[start : start + len(block)] = block

    def finish(self, slots: Views, given: tuple[Views, memoryview]) -> bool:
        mine, out = self._mine, given[1]
        self.reduce.into(slots[0][mine], slots[1][mine], out)
        for slot in slots[2:]:
            self.reduce(out, slot[mine])
        if self.reduce.needs_finish:
            self.reduce.finish(out)
        return True


class SmallAllToAll(SmallCall[tuple[Views, Views]]):
    """Given: a block for each rank, and a place for each rank's."""

    __slots__ = ("_size", "_starts")

    def __init__(self, seat: Seat, fingerprint: Fingerprint, lengths: Sequence[int]) -> None:
        self._size = seat.size
        self._starts = starts = starts_of(lengths)
        reads = [(rank, -1) for rank in seat.others]  # who alone knows how much it has
        super().__init__(seat, fingerprint, starts[-1], reads, starts[-1])
        self.fits = seat.shares and starts[-1] <= SLOT_BYTES

    def fill(self, slot: memoryview, given: tuple[Views, Views]) -> None:
        write_blocks(slot, given[0], self._starts)

    def finish(self, slots: Views, given: tuple[Views, Views]) -> bool:
        inputs, places = given
        own = self.rank
        found = []
        for rank, _ in self.reads:
            lengths, block = read_blocks(slots[rank], own, self._size, SLOT_BYTES)
            if block is None or lengths[own] != len(places[rank]):
                return False
            found.append((places[rank], block))
        places[own][:] = inputs[own]
        for place, block in found:
            place[:] = block
        return True


def _reduce(reduce: Reduction, operands: Views, own: int, out: memoryview) -> None:
    reduce_in_order(reduce, operands, own, out)
    if reduce.needs_finish:
        reduce.finish(out)
