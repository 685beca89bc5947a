"""Collectives of a slot of shared memory, which may be over before anything is made for them.

A line, a record, a coroutine and its driver cost several times what the ranks need to swap a few
bytes. So a small operation first tries without. What it needs is the same in equal calls, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from aiodist.backends.sizes import unequal
from aiodist.backends.swaps import (
    Given,
    Seat,
    SmallAllGather,
    SmallAllReduce,
    SmallAllToAll,
    SmallBarrier,
    SmallBroadcast,
    SmallCall,
    SmallReduce,
    SmallReduceScatter,
)
from aiodist.collectives.select import Rules
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.tensors import Buffer, DType, Reduction
from aiodist.types import ReduceOp

_KEPT = 256
"""Different calls of which one group remembers what they need."""


class Small:
    """The collectives of one group: what each needs, small or not, and the short way of small ones."""

    __slots__ = ("_group", "_known", "_reduction", "_seat", "barrier")

    def __init__(
        self,
        group: ProcessGroup,
        shares: bool,
        rules: Rules,
        reduction: Callable[[ReduceOp, DType], Reduction],
    ) -> None:
        """``shares``: whether the group's collectives run in memory where that is shared.

        ``rules``: by which they are chosen there, on all ranks.
        """
        self._group = group
        self._reduction = reduction
        self._seat = Seat(group.own_rank, group.n_ranks, shares, rules)
        self._known: dict[Hashable, Any] = {}  # each a `SmallCall`
        self.barrier = SmallBarrier(self._seat)

    def at_once(self, call: SmallCall[Given], given: Given) -> Work[None] | None:
        """Carry it out now, if it goes into slots and nobody has to be waited for; else None."""
        return self._group.at_once(call, given) if call.fits else None

    # -- what equal calls need. TypeError where ``op`` has no meaning for the elements.

    def broadcast(self, buffer: Buffer, root: int) -> SmallBroadcast:
        key = ("broadcast", buffer.dtype.code, buffer.shape, root)
        call: SmallBroadcast | None = self._known.get(key)
        if call is None:
            agreed = _of(buffer, "broadcast", None, root)
            call = SmallBroadcast(self._seat, agreed, buffer.nbytes, root)
            self._keep(key, call)
        return call

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> SmallReduce:
        # By identity: what is known keeps its op, and with it the number, which is its alone.
        key = ("reduce", buffer.dtype.code, buffer.shape, id(op), root)
        call: SmallReduce | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, buffer.dtype)
            agreed = _of(buffer, "reduce", op, root)
            call = SmallReduce(self._seat, agreed, buffer.nbytes, root, reduce)
            self._keep(key, call, op)
        return call

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> SmallAllReduce:
        key = (buffer.dtype.code, buffer.shape, id(op))
        call: SmallAllReduce | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, buffer.dtype)
            agreed = _of(buffer, "all_reduce", op)
            call = SmallAllReduce(self._seat, agreed, buffer.nbytes, reduce)
            self._keep(key, call, op)
        return call

    def all_gather(self, buffer: Buffer, counts: Sequence[int]) -> SmallAllGather:
        """``counts``: how many elements each rank has."""
        key = ("all_gather", buffer.dtype.code, buffer.shape, *counts)
        call: SmallAllGather | None = self._known.get(key)
        if call is None:
            agreed = Fingerprint(
                "all_gather", buffer.dtype, None, unequal(counts), sum(counts), buffer.shape
            )
            size = buffer.dtype.itemsize
            call = SmallAllGather(self._seat, agreed, [count * size for count in counts])
            self._keep(key, call)
        return call

    def reduce_scatter(
        self, place: Buffer, counts: Sequence[int], op: ReduceOp
    ) -> SmallReduceScatter:
        """``counts``: how many elements each rank gets; ``place``: where this one's go."""
        key = ("reduce_scatter", place.dtype.code, place.shape, id(op), *counts)
        call: SmallReduceScatter | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, place.dtype)
            agreed = Fingerprint(
                "reduce_scatter", place.dtype, op, unequal(counts), sum(counts), place.shape
            )
            size = place.dtype.itemsize
            call = SmallReduceScatter(self._seat, agreed, [n * size for n in counts], reduce)
            self._keep(key, call, op)
        return call

    def all_to_all(
        self, dtype: DType, shape: tuple[int, ...] | None, inputs: Sequence[memoryview]
    ) -> SmallAllToAll:
        """``shape``: of this rank's tensor, if it is one; ``inputs``: what it has for each rank."""
        lengths = [len(block) for block in inputs]
        key = ("all_to_all", dtype.code, shape, *lengths)
        call: SmallAllToAll | None = self._known.get(key)
        if call is None:
            agreed = Fingerprint("all_to_all", dtype, shape=shape)
            call = SmallAllToAll(self._seat, agreed, lengths)
            self._keep(key, call)
        return call

    def _keep(self, key: Hashable, call: SmallCall[Any], op: ReduceOp | None = None) -> None:
        if op is not None and op.factor is not None:
            return  # each premul_sum is another
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = call


def _of(buffer: Buffer, operation: str, op: ReduceOp | None, root: int = -1) -> Fingerprint:
    return Fingerprint(operation, buffer.dtype, op, root, buffer.count, buffer.shape)
