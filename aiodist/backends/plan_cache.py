"""The plans of one group's operations: what equal calls share, found by one key.

By its plan an operation completes before a context, a record and a driver are made for it. Those
cost several times what the ranks need to exchange a few bytes. The plan of a collective holds the
fingerprint, the reduction, how the tensors' memory is found in few steps, and the `ShmPlan` of the
ranks of one host. The plans of messages are in `native_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from aiodist.backends.plans import PLANS, GroupShape
from aiodist.backends.tensor_opening import cut, parts_of
from aiodist.collectives.select import Rules
from aiodist.collectives.views import BlocksView, CachedView, DataView
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine, ShmPlan
from aiodist.groups.operation import (
    AllGatherSingle,
    AllToAllSingle,
    Collective,
    Opened,
    ReduceScatterSingle,
)
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.tensors import Buffer, DType, Reduction, TensorSignature
from aiodist.types import ReduceOp

MAX_PLANS = 512
"""The most plans that one group caches."""

StartPlan = Callable[[Any, Any, float | None, Any], CompletedRecord | Work[Any] | None]
"""As `GroupEngine.start_plan`, which is that of collectives."""


class CachedPlan(Protocol):
    """What equal operations share: `start` with `direct` and `views` starts each of them."""

    start: StartPlan
    direct: Any

    def views(self, operation: Any) -> Any:
        """Return what ``direct`` works on, in few steps and without checks.

        None: only the general path knows the memory of these tensors.
        """


Signed = tuple[TensorSignature[Any], Any]
"""A tensor, and the signature that it has."""


class Plan:
    """What equal collectives share. Its tensors are opened by `Operation.open` in each call."""

    __slots__ = ("direct", "fingerprint", "reduce", "start")

    def __init__(
        self,
        fingerprint: Fingerprint,
        reduce: Reduction | None,
        direct: ShmPlan[Any] | None = None,
        start: StartPlan | None = None,
    ) -> None:
        """``direct``: what ``start`` takes. If nothing is shared, neither is given."""
        self.fingerprint = fingerprint
        self.reduce: Any = reduce  # None where nothing is reduced
        self.direct: Any = direct
        self.start: Any = start

    def views(self, operation: Any) -> Any:
        """As `CachedPlan.views`."""
        return None

    def signed(self, operation: Any) -> Sequence[Signed]:
        """Return the tensors on whose memory `views` depends."""
        return ()


class NoTensorPlan(Plan):
    """The plan of a barrier."""

    __slots__ = ()

    def views(self, operation: Any) -> Any:
        return ()


class OneTensorPlan(Plan):
    """The plan of a collective on one tensor whose bytes lie in host memory without gaps."""

    __slots__ = ("_address_of", "_kept", "_open", "_signature")

    def __init__(self, plan: Plan, signature: TensorSignature[DataView]) -> None:
        super().__init__(plan.fingerprint, plan.reduce, plan.direct, plan.start)
        self._signature = signature
        self._address_of = signature.address_of
        self._kept = signature.kept
        self._open = signature.open

    def views(self, operation: Any) -> DataView | None:
        tensor = operation.tensor
        address = self._address_of(tensor)
        return self._kept.get(address) or self._open(tensor, address)

    def signed(self, operation: Any) -> Sequence[Signed]:
        return [(self._signature, operation.tensor)]


class TwoTensorPlan(Plan):
    """The plan of a collective that reads one such tensor and writes another."""

    __slots__ = ("_source", "_target")

    def __init__(
        self, plan: Plan, source: TensorSignature[CachedView], target: TensorSignature[CachedView]
    ) -> None:
        super().__init__(plan.fingerprint, plan.reduce, plan.direct, plan.start)
        self._source = source
        self._target = target

    def views(self, operation: Any) -> tuple[CachedView, CachedView] | None:
        source = self._source.memory(operation.tensor)
        target = self._target.memory(operation.output)
        return None if source is None or target is None else (source, target)

    def signed(self, operation: Any) -> Sequence[Signed]:
        return [(self._source, operation.tensor), (self._target, operation.output)]


class ApartTensorsPlan(TwoTensorPlan):
    """The plan of a collective whose two tensors may not share memory."""

    __slots__ = ("_source_bytes", "_target_bytes")

    def __init__(
        self,
        plan: Plan,
        source: TensorSignature[CachedView],
        target: TensorSignature[CachedView],
        opened: Opened[Buffer],
    ) -> None:
        super().__init__(plan, source, target)
        self._source_bytes = opened.inputs[0].nbytes
        self._target_bytes = opened.outputs[0].nbytes

    def views(self, operation: Any) -> tuple[CachedView, CachedView] | None:
        views = TwoTensorPlan.views(self, operation)
        if views is None:
            return None
        source, target = views
        # Equal calls are compared once for each pair of addresses.
        if source.apart is not target:
            start = self._source.address_of(operation.tensor)
            other = self._target.address_of(operation.output)
            if start < other + self._target_bytes and other < start + self._source_bytes:
                return None  # `Operation.open` raises the error
            source.apart = target
        return views


class PlanCache:
    """The plans of one group."""

    __slots__ = ("_group", "_reduction", "_shape", "_shares", "get", "plans")

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
        self._shape = GroupShape(group.rank, group.size, rules)
        self._shares = shares
        self.plans: dict[Hashable, CachedPlan] = {}
        self.get = self.plans.get
        """Return the plan for the key of an operation, or None."""

    def make(self, key: Hashable, operation: Collective[Any], opened: Opened[Buffer]) -> Plan:
        """Return a new plan for ``operation``, and cache it by ``key`` if there is one.

        Raises TypeError if the operation's ``op`` has no meaning for the dtype.
        """
        op: ReduceOp | None = getattr(operation, "op", None)
        reduce = None if op is None else self._reduction(op, opened.inputs[0].dtype)
        fingerprint = operation.fingerprint(opened)
        make = PLANS.get(operation.kind) if self._shares else None
        if make is None or (reduce is not None and reduce.needs_prepare):
            plan = Plan(fingerprint, reduce)
        else:
            direct = make(self._shape, fingerprint, opened, reduce)
            plan = Plan(fingerprint, reduce, direct, self._group.start_plan)
            plan = _with_signatures(plan, operation, opened)
        # Every premul_sum is a new object, so it would never be found.
        if key is not None and (op is None or op.factor is None):
            self.add(key, plan)
        return plan

    def add(self, key: Hashable, plan: CachedPlan) -> None:
        """Cache ``plan`` by ``key``. A full cache drops all plans first."""
        if len(self.plans) >= MAX_PLANS:
            self.forget()
        self.plans[key] = plan

    def forget(self) -> None:
        """Drop all plans: the group is closed."""
        self.plans.clear()
        self._shape.view_cache.forget()


def views_of(opened: Opened[Buffer]) -> Any:
    """Return what the `ShmPlan` of an operation works on, for memory that is no copy."""
    inputs, outputs = opened.inputs, opened.outputs
    if not opened.out_of and not opened.into:
        return DataView((*inputs, *outputs)[0].view) if inputs or outputs else ()
    return _view(inputs, opened.out_of), _view(outputs, opened.into)


def _view(buffers: Sequence[Buffer], lengths: Sequence[int]) -> CachedView:
    return BlocksView(cut(buffers, lengths)) if lengths else DataView(buffers[0].view)


def _with_signatures(plan: Plan, operation: Any, opened: Opened[Buffer]) -> Plan:
    """Return ``plan`` as it finds the memory of equal tensors in few steps, if it can."""
    inputs, outputs = opened.inputs, opened.outputs
    if not inputs and not outputs:
        return NoTensorPlan(plan.fingerprint, plan.reduce, plan.direct, plan.start)
    if not opened.out_of and not opened.into:
        signature = (*inputs, *outputs)[0].signature(DataView)
        return plan if signature is None else OneTensorPlan(plan, signature)
    if not isinstance(operation, _SINGLE):
        return plan
    source = inputs[0].signature(_maker(opened.out_of))
    target = outputs[0].signature(_maker(opened.into))
    if source is None or target is None:
        return plan
    if isinstance(operation, AllToAllSingle):
        return ApartTensorsPlan(plan, source, target, opened)
    return TwoTensorPlan(plan, source, target)


def _maker(lengths: Sequence[int]) -> Callable[[memoryview], CachedView]:
    return partial(_blocks, tuple(lengths)) if lengths else DataView


def _blocks(lengths: Sequence[int], view: memoryview) -> BlocksView:
    return BlocksView(parts_of(lengths, view))


_SINGLE = (AllGatherSingle, ReduceScatterSingle, AllToAllSingle)
"""Collectives that read one tensor and write another one."""
