"""Reduce of small data over shared memory: all publish theirs, the root adds up.

Steps: one; only the root waits. Bytes: each rank but the root writes N, the root reads (n - 1) * N.
Large data goes by stripes: see all_reduce_stripes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import setitem

from aiodist.collectives.all_reduce_slots import Last, ReducingSlots
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.schedule import Do, reductions_in_order
from aiodist.collectives.shm_exchange import all_others
from aiodist.collectives.views import DataView
from aiodist.copying import copy


class ReduceSlots(ReducingSlots[DataView]):
    """Reduce of data that fits into a slot, into the root's, in place."""

    __slots__ = ("_length",)

    def __init__(
        self,
        rank: int,
        size: int,
        nbytes: int,
        root: int,
        reduce: Reduction,
        last: Last | None = None,
    ) -> None:
        is_root = rank == root
        reads = all_others(rank, size, nbytes) if is_root else ()
        super().__init__(rank, size, -1 if is_root else nbytes, reads, reduce, last)
        self._length = nbytes

    def fill(self, slot: memoryview, given: DataView) -> None:
        copy(slot[: self.nbytes], given.view[: self.nbytes])

    def finish(self, number: int, slots: Sequence[memoryview], given: DataView) -> bool:
        return bool(self.reads) and self._reduce_into(number, slots, given)

    def _reductions(self, slots: Sequence[memoryview], place: memoryview) -> Iterable[Do]:
        operands = [slot[: self._length] for slot in slots]
        operands[self.rank] = place
        if self.rank > 1:  # the first operands overwrite this rank's own, so it is copied first
            operands[self.rank] = own = memoryview(bytearray(self._length))
            yield partial(setitem, own, slice(None), place)
        yield from reductions_in_order(self._reduce, operands, place)
