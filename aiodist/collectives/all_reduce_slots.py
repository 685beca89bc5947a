"""All-reduce of small data over shared memory: all publish theirs, each adds up all.

Steps: one. Bytes: each rank writes N and reads (n - 1) * N. Every rank reduces in the order of
ranks, so the bits are the same everywhere. One step costs a few flags; for small data that is all
there is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import Do, reductions_in_order
from aiodist.collectives.shm_exchange import Exchange, Given, Reads, all_others
from aiodist.collectives.views import DataView
from aiodist.copying import AT_ONCE, copy

Last = Callable[[memoryview], object]
"""What is left to do with reduced memory: dividing by the number of ranks, for an average."""


class ReducingSlots(Exchange[Given]):
    """Slots whose contents are reduced, in the order of ranks."""

    __slots__ = ("_last", "_reduce")

    def __init__(
        self, rank: int, size: int, nbytes: int, reads: Reads, reduce: Reduction, last: Last | None
    ) -> None:
        super().__init__(rank, size, nbytes, reads)
        self._reduce = reduce
        self._last = last

    def _reduce_into(self, number: int, slots: Sequence[memoryview], given: DataView) -> bool:
        reductions = given.reductions[number]
        if reductions is None:
            reductions = list(self._reductions(slots, given.view))
            if self._last is not None:
                reductions.append(partial(self._last, given.view))
            given.reductions[number] = reductions
        for reduction in reductions:
            reduction()
        return False

    @abstractmethod
    def _reductions(self, slots: Sequence[memoryview], place: memoryview) -> Iterable[Do]:
        """Return what reduces the ``slots`` into ``place``, each time it is called."""


class AllReduceSlots(ReducingSlots[DataView]):
    """All-reduce of data that fits into a slot, in place."""

    __slots__ = ()

    def __init__(
        self, rank: int, size: int, nbytes: int, reduce: Reduction, last: Last | None = None
    ) -> None:
        super().__init__(rank, size, nbytes, all_others(rank, size, nbytes), reduce, last)

    def fill(self, slot: memoryview, given: DataView) -> None:
        nbytes = self.nbytes
        if nbytes <= AT_ONCE:  # without a call, whose cost counts for 4 bytes
            slot[:nbytes] = given.view
        else:
            copy(slot[:nbytes], given.view)

    finish = ReducingSlots._reduce_into

    def _reductions(self, slots: Sequence[memoryview], place: memoryview) -> Iterable[Do]:
        operands = [slot[: self.nbytes] for slot in slots]
        if self.rank < 2:  # a later one is overwritten before its turn, and read in the slot
            operands[self.rank] = place
        return reductions_in_order(self._reduce, operands, place)
