"""Collectives of a slot of shared memory, which may be over before anything is made for them.

A line, a record, a coroutine and its driver cost several times what the ranks need to swap a few
bytes. So a small operation first tries without. What it needs is the same in equal calls, and kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.all_reduce_slots import reduce_in_order
from aiodist.collectives.select import SHARED_RULES, select
from aiodist.groups.fingerprint import Fingerprint, Terms
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.tensors import Buffer, Reduction, reduction
from aiodist.types import ReduceOp

_KEPT = 256
"""Different calls of which one group remembers what they need."""


class Small:
    """The small operations of one group. Each returns None where it has to go the usual way."""

    __slots__ = ("_barrier", "_group", "_known", "_shares")

    def __init__(self, group: ProcessGroup, shares: bool) -> None:
        """``shares``: whether the group's collectives run in memory where that is shared."""
        self._group = group
        self._shares = shares
        self._known: dict[tuple[int, int, int], _AllReduce | None] = {}
        self._barrier = Terms(Fingerprint("barrier"))

    def barrier(self) -> Work[None] | None:
        if not self._shares:
            return None
        return self._group.at_once(self._barrier, _NOTHING, _nothing)

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> Work[None] | None:
        if not self._shares:
            return None
        # By identity: what is known keeps its op, and with it the number, which is its alone.
        key = (buffer.dtype.code, buffer.count, id(op))
        try:
            call = self._known[key]
        except KeyError:
            call = self._learn(key, buffer, op)
        if call is None:
            return None
        return self._group.at_once(call.terms, buffer.view, call)

    def _learn(self, key: tuple[int, int, int], buffer: Buffer, op: ReduceOp) -> _AllReduce | None:
        group = self._group
        reduce = reduction(op, buffer.dtype, group.n_ranks)
        choice = select("all_reduce", group.n_ranks, buffer.nbytes, rules=SHARED_RULES)
        if reduce.needs_prepare or choice.algorithm != "slots":
            return None
        if len(self._known) >= _KEPT:
            self._known.clear()
        fingerprint = Fingerprint("all_reduce", buffer.dtype, op, count=buffer.count)
        call = self._known[key] = _AllReduce(Terms(fingerprint), reduce, group.own_rank, op)
        return call


class _AllReduce:
    """What equal calls of all_reduce need."""

    __slots__ = ("_op", "_rank", "_reduce", "terms")

    def __init__(self, terms: Terms, reduce: Reduction, rank: int, op: ReduceOp) -> None:
        self.terms = terms
        self._reduce = reduce
        self._rank = rank
        self._op = op

    def __call__(self, slots: Sequence[memoryview], data: memoryview) -> None:
        reduce = self._reduce
        reduce_in_order(reduce, slots, self._rank, data)
        if reduce.needs_finish:
            reduce.finish(data)


_NOTHING = memoryview(b"")


def _nothing(_: Sequence[memoryview], __: memoryview) -> None:
    pass
