"""Start collectives in shared memory before a context and a record are made for them.

A context, a record and a driver cost several times what the ranks need to exchange a few bytes, and
a part of what they need for some megabytes. An operation first tries without them: in slots, or in
chunks. Its plan is the same in equal calls, and is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from aiodist.backends.plans import (
    AllGatherPlan,
    AllReducePlan,
    AllToAllPlan,
    BarrierPlan,
    BroadcastPlan,
    Given,
    GroupShape,
    ReducePlan,
    ReduceScatterPlan,
    ShmPlan,
)
from aiodist.backends.sizes import unequal
from aiodist.collectives.select import Rules
from aiodist.collectives.views import BlocksView, DataView
from aiodist.groups.backend import Tensor
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.tensors import Buffer, DType, Reduction, TensorSignature
from aiodist.types import ReduceOp

_KEPT = 256
"""The most plans that one group caches."""


class PlanCache:
    """The plans of one group's collectives, and the direct path by which they start."""

    __slots__ = ("_group", "_known", "_pairs", "_reduction", "_shape", "_signatures", "barrier")

    def __init__(
        self,
        group: GroupEngine,
        shares: bool,
        rules: Rules,
        reduction: Callable[[ReduceOp, DType], Reduction],
    ) -> None:
        """Create an empty cache.

        ``shares``: whether the group's collectives run in memory where that is shared. ``rules``:
        by which the algorithms are chosen, equal on all ranks.
        """
        self._group = group
        self._reduction = reduction
        self._shape = GroupShape(group.own_rank, group.n_ranks, shares, rules)
        self._known: dict[Hashable, Any] = {}  # each a `ShmPlan`
        # By type of the tensor. The key of a call consists of facts that are known before its
        # tensor has been opened.
        self._signatures: dict[
            type, dict[Hashable, tuple[ShmPlan[DataView], TensorSignature[DataView]]]
        ] = {}
        # Calls with two tensors, by the operation and the types of both.
        self._pairs: dict[Hashable, dict[Hashable, Any]] = {}
        self.barrier = BarrierPlan(self._shape, Fingerprint("barrier"))

    def at_once(
        self, call: ShmPlan[Given], given: Given, timeout: float | None, *owners: Buffer
    ) -> Work[None] | None:
        """Carry it out now as far as it need not wait for a peer. Returns None if it cannot begin.

        ``owners``: of the memory in ``given``.
        """
        return self._group.at_once(call, given, timeout, owners) if call.is_direct else None

    def run_cached(
        self, operation: str, tensor: Tensor, variant: Hashable, timeout: float | None = None
    ) -> CompletedRecord | Work[None] | None:
        """Implement `CollectiveBackend.run_cached`. Returns None on a miss, without checks.

        On a miss the caller opens the tensors by `buffer_of`, which raises for invalid ones.
        """
        signatures = self._signatures.get(type(tensor))
        if signatures is None:
            return None
        try:
            known = signatures.get((operation, tensor.dtype, tensor.shape, variant))
            if known is None:
                return None
            call, signature = known
            address = signature.address_of(tensor)
            data = signature.kept.get(address) or signature.open(tensor, address)
        except RuntimeError:  # raised by torch for a tensor without shape or storage
            return None
        return None if data is None else self._group.carry_out(call, data, timeout, tensor)

    def run_cached_between(
        self,
        operation: str,
        target: Tensor,
        source: Tensor,
        variant: Hashable = None,
        timeout: float | None = None,
    ) -> CompletedRecord | Work[None] | None:
        """Run an operation that writes one tensor and reads another. See `run_cached`."""
        signatures = self._pairs.get((operation, type(target), type(source)))
        if signatures is None or self._group.communicator is None:
            return None
        try:
            known = signatures.get(
                (target.dtype, target.shape, source.dtype, source.shape, variant)
            )
            if known is None:
                return None
            call, to, of = known
            given = of.memory(source), to.memory(target)
        except RuntimeError:  # as in `run_cached`
            return None
        if None in given:
            return None
        return self._group.carry_out(call, given, timeout, (target, source))

    def run_cached_without_tensor(self) -> CompletedRecord | Work[None] | None:
        """Run a barrier. See `run_cached`."""
        return self._group.carry_out(self.barrier, None) if self.barrier.is_direct else None

    def keep_pair(
        self,
        call: ShmPlan[Any],
        target: Buffer,
        source: Buffer,
        parts: tuple[bool, bool],
        variant: Hashable = None,
    ) -> None:
        """Cache the plan for `run_cached_between` of equal calls on plain tensors.

        ``parts``: for ``target`` and ``source``, whether the plan takes them as one part for each
        rank.
        """
        to, of = target.owner, source.owner
        kind = call.fingerprint.operation, type(to), type(of)
        key = to.dtype, to.shape, of.dtype, of.shape, variant
        if not call.is_direct or key in self._pairs.get(kind, ()):
            return
        size = self._shape.size
        signatures = [
            buffer.signature(partial(_parts, size) if split else DataView)
            for buffer, split in zip((target, source), parts, strict=True)
        ]
        if None not in signatures:
            self._pairs.setdefault(kind, {})[key] = call, *signatures

    def forget(self) -> None:
        """Drop all plans: the group is closed."""
        self._known.clear()
        self._signatures.clear()
        self._pairs.clear()
        self._shape.view_cache.forget()

    # -- plans. They raise TypeError if ``op`` has no meaning for the dtype.

    def broadcast(self, buffer: Buffer, root: int) -> BroadcastPlan:
        key = ("broadcast", type(buffer.owner), buffer.dtype.code, buffer.shape, root)
        call: BroadcastPlan | None = self._known.get(key)
        if call is None:
            agreed = _of(buffer, "broadcast", None, root)
            call = BroadcastPlan(self._shape, agreed, buffer.nbytes, root)
            self._keep(key, call)
            self._keep_signature(call, buffer, root)
        return call

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> ReducePlan:
        # By identity: a cached plan keeps its op alive, so the id cannot be reused.
        kind = type(buffer.owner)
        key = ("reduce", kind, buffer.dtype.code, buffer.shape, id(op), root)
        call: ReducePlan | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, buffer.dtype)
            agreed = _of(buffer, "reduce", op, root)
            call = ReducePlan(self._shape, agreed, buffer.nbytes, root, reduce)
            self._keep(key, call, op)
            self._keep_signature(call, buffer, (root, id(op.kind)))
        return call

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> AllReducePlan:
        key = (type(buffer.owner), buffer.dtype.code, buffer.shape, id(op))
        call: AllReducePlan | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, buffer.dtype)
            agreed = _of(buffer, "all_reduce", op)
            call = AllReducePlan(self._shape, agreed, buffer.nbytes, reduce)
            self._keep(key, call, op)
            self._keep_signature(call, buffer, id(op.kind))
        return call

    def all_gather(self, buffer: Buffer, counts: Sequence[int]) -> AllGatherPlan:
        """Return the plan. ``counts``: how many elements each rank has."""
        key = ("all_gather", buffer.dtype.code, buffer.shape, *counts)
        call: AllGatherPlan | None = self._known.get(key)
        if call is None:
            agreed = Fingerprint(
                "all_gather", buffer.dtype, None, unequal(counts), sum(counts), buffer.shape
            )
            size = buffer.dtype.itemsize
            call = AllGatherPlan(self._shape, agreed, [count * size for count in counts])
            self._keep(key, call)
        return call

    def reduce_scatter(
        self, place: Buffer, counts: Sequence[int], op: ReduceOp
    ) -> ReduceScatterPlan:
        """Return the plan. ``counts``: how many elements each rank gets. ``place``: where this
        rank's go.
        """
        key = ("reduce_scatter", place.dtype.code, place.shape, id(op), *counts)
        call: ReduceScatterPlan | None = self._known.get(key)
        if call is None:
            reduce = self._reduction(op, place.dtype)
            agreed = Fingerprint(
                "reduce_scatter", place.dtype, op, unequal(counts), sum(counts), place.shape
            )
            size = place.dtype.itemsize
            call = ReduceScatterPlan(self._shape, agreed, [n * size for n in counts], reduce)
            self._keep(key, call, op)
        return call

    def all_to_all(
        self, dtype: DType, shape: tuple[int, ...] | None, inputs: Sequence[memoryview]
    ) -> AllToAllPlan:
        """Return the plan. ``shape``: of this rank's tensor, if there is one. ``inputs``: its block
        for each rank.
        """
        lengths = [len(block) for block in inputs]
        key = ("all_to_all", dtype.code, shape, *lengths)
        call: AllToAllPlan | None = self._known.get(key)
        if call is None:
            agreed = Fingerprint("all_to_all", dtype, shape=shape)
            call = AllToAllPlan(self._shape, agreed, lengths)
            self._keep(key, call)
        return call

    def _keep(self, key: Hashable, call: ShmPlan[Any], op: ReduceOp | None = None) -> None:
        if op is not None and op.factor is not None:
            return  # every premul_sum is a new object, so it would never be found
        if len(self._known) >= _KEPT:
            self.forget()
        self._known[key] = call

    def _keep_signature(self, call: ShmPlan[DataView], buffer: Buffer, variant: Hashable) -> None:
        signature = buffer.signature(DataView) if call.is_direct else None
        if signature is not None:
            owner = buffer.owner
            key = (call.fingerprint.operation, owner.dtype, owner.shape, variant)
            self._signatures.setdefault(type(owner), {})[key] = call, signature


def _parts(size: int, view: memoryview) -> BlocksView:
    length = len(view) // size
    return BlocksView([view[start : start + length] for start in range(0, len(view), length)])


def _of(buffer: Buffer, operation: str, op: ReduceOp | None, root: int = -1) -> Fingerprint:
    return Fingerprint(operation, buffer.dtype, op, root, buffer.count, buffer.shape)
