"""Collectives of a slot of shared memory, which may be over before anything is made for them.

A line, a record, a coroutine and its driver cost several times what the ranks need to swap a few
bytes. So a small operation first tries without. What it needs is the same in equal calls, and kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.all_reduce_slots import reduce_in_order
from aiodist.collectives.select import Rules, select
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.tensors import Buffer, Reduction, reduction
from aiodist.types import ReduceOp

_KEPT = 256
"""Different calls of which one group remembers what they need."""

_Key = tuple[int, tuple[int, ...], int]


class Small:
    """The small operations of one group. Each returns None where it has to go the usual way."""

    __slots__ = ("_barrier", "_group", "_known", "_rules", "_shares")

    def __init__(self, group: ProcessGroup, shares: bool, rules: Rules) -> None:
        """``shares``: whether the group's collectives run in memory where that is shared.

        ``rules``: by which they are chosen there, on all ranks.
        """
        self._group = group
        self._shares = shares
        self._rules = rules
        self._known: dict[_Key, AllReduce] = {}
        self._barrier = Fingerprint("barrier")

    def barrier(self) -> Work[None] | None:
        if not self._shares:
            return None
        return self._group.at_once(self._barrier, _NOTHING, _nothing)

    def all_reduce(self, call: AllReduce, data: memoryview) -> Work[None] | None:
        if not call.is_small or not self._shares:
            return None
        return self._group.at_once(call.fingerprint, data, call.finish)

    def call_of(self, buffer: Buffer, op: ReduceOp) -> AllReduce:
        """What an all_reduce of ``buffer`` needs. Raises TypeError where ``op`` has no meaning."""
        # By identity: what is known keeps its op, and with it the number, which is its alone.
        key = (buffer.dtype.code, buffer.shape, id(op))
        call = self._known.get(key)
        if call is None:
            call = AllReduce(self._group, buffer, op, self._rules)
            if op.factor is None:  # each premul_sum is another
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[key] = call
        return call


class AllReduce:
    """What equal calls of all_reduce need."""

    __slots__ = ("_op", "_rank", "fingerprint", "is_small", "reduce")

    def __init__(self, group: ProcessGroup, buffer: Buffer, op: ReduceOp, rules: Rules) -> None:
        self._op = op
        self._rank = group.own_rank
        size = group.n_ranks
        self.reduce: Reduction = reduction(op, buffer.dtype, size)
        self.fingerprint = Fingerprint(
            "all_reduce", buffer.dtype, op, -1, buffer.count, buffer.shape
        )
        choice = select("all_reduce", size, buffer.nbytes, rules=rules)
        self.is_small = choice.algorithm == "slots" and not self.reduce.needs_prepare

    def finish(self, slots: Sequence[memoryview], data: memoryview) -> None:
        """What is left to do once all ranks' data is there."""
        reduce = self.reduce
        reduce_in_order(reduce, slots, self._rank, data)
        if reduce.needs_finish:
            reduce.finish(data)


_NOTHING = memoryview(b"")


def _nothing(_: Sequence[memoryview], __: memoryview) -> None:
    pass
