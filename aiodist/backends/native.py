"""The backend "aiodist", also reached as "gloo": every operation over aiodist's own streams."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aiodist.backends.algorithm_choice import AlgorithmChoice, Operations
from aiodist.backends.gradual_copy import (
    copy_gradually,
    gradually,
    load_gradually,
    write_back_gradually,
)
from aiodist.backends.native_messages import NativeMessages
from aiodist.backends.native_objects import NativeObjects
from aiodist.backends.plan_cache import Plan, PlanCache, views_of
from aiodist.backends.sends import Sends
from aiodist.backends.tensor_opening import are_staged, cut, open_buffer, parts_of
from aiodist.collectives import calls
from aiodist.collectives.calls import Call
from aiodist.collectives.channel import Channel
from aiodist.collectives.rule_tables import Tables
from aiodist.completion import T
from aiodist.groups.collective_backend import (
    CollectiveBackend,
    ObjectStream,
    Start,
    StreamSettings,
)
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Collective, Opened, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.tensors import Buffer, DType, Reduction, reduction, scratch
from aiodist.tensors.memory_overlap import overlaps_others
from aiodist.types import ReduceOp

Body = Callable[[Plan, Opened[Buffer], Channel], Coroutine[Any, Any, None]]
"""Carries a collective out: its plan, its memory, and a channel."""


class NativeBackend(CollectiveBackend):
    """Operations on CPU tensors and arrays; non-contiguous ones travel through a staged copy."""

    name = "aiodist"

    def __init__(
        self,
        group: GroupEngine,
        run: Operations | None = None,
        tables: Tables | None = None,
        change: Callable[[Reduction, ReduceOp, DType], Reduction] | None = None,
    ) -> None:
        """``run``: moves the tensors' bytes in collectives; None for the engine's own algorithms.

        ``tables``: the rules by which it chooses, equal on all ranks; None for the world's.
        ``change``: returns what ``run`` gets in place of a reduction; None: the reduction itself.
        """
        tables = tables or group.world.tables
        self._group = group
        self._as_its_loop = group.world.as_its_loop
        self._run = run or AlgorithmChoice(tables)
        self._shares = run is None
        self._change = change
        self.plans = PlanCache(group, self._shares, tables.shared, self._reduction)
        """What equal operations of the group share."""
        sends = Sends(group)
        self._messages = NativeMessages(group, sends, self.plans)
        self._objects = NativeObjects(group, self._run, sends)
        self._bodies: Mapping[str, Body] = {
            "barrier": self._barrier,
            "broadcast": self._broadcast,
            "reduce": self._reduce,
            "gather": self._gather,
            "scatter": self._scatter,
            "all_reduce": self._all_reduce,
            "all_reduce_coalesced": self._all_reduce_coalesced,
            "all_gather": self._all_gather,
            "all_gather_coalesced": self._all_gather_coalesced,
            "reduce_scatter": self._reduce_scatter,
            "all_to_all": self._all_to_all,
        }
        self._others: Mapping[str, Start] = {**self._messages.starts, **self._objects.starts}

    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        """Start an operation by its plan, at once in shared memory, or else by the general path."""
        started: Any
        key = plan = views = None
        try:
            key = operation.key()
            plan = self.plans.get(key)
            if plan is not None:
                views = plan.views(operation)
        except (AttributeError, TypeError, RuntimeError):
            pass  # not a tensor, or one without shape or storage: opening it says so
        if views is not None:
            assert plan is not None
            started = plan.start(plan.direct, views, timeout, operation)
            if started is not None:
                return started  # type: ignore[no-any-return]  # of the operation's own type
        if (other := self._others.get(operation.kind)) is not None:
            started = other(operation, timeout)
        else:
            tried = views is not None
            started = self._as_its_loop(self._begin, operation, key, plan, tried, timeout)
        return started  # type: ignore[no-any-return]

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        opened = operation.open(open_buffer, self._group)  # checks the arguments
        key = operation.key()
        plan: Any = self.plans.get(key) or self.plans.make(key, operation, opened)
        views = plan.views(operation)
        if views is None or plan.direct is None:
            return start
        return _prepared(plan, operation, views, start)

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        open_buffer(tensor, "tensor", writable=writable)

    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        return self._objects.streams.open(settings)

    def close(self) -> None:
        self.plans.forget()

    def _reduction(self, op: ReduceOp, dtype: DType) -> Reduction:
        """Return ``op`` on elements of ``dtype`` over the group's ranks, for `Operations` to run."""
        ours = reduction(op, dtype, self._group.size)
        return ours if self._change is None else self._change(ours, op, dtype)

    # -- collectives

    def _begin(
        self,
        operation: Any,
        key: Hashable,
        plan: Plan | None,
        was_tried: bool,
        timeout: float | None,
    ) -> Any:
        """Start a collective on tensors that are opened and checked.

        ``was_tried``: it could not complete at once.
        """
        group = self._group
        opened = operation.open(open_buffer, group)
        plan = plan or self.plans.make(key, operation, opened)
        first = next(iter((*opened.inputs, *opened.outputs)), None)
        if (
            plan.direct is not None
            and not was_tried
            and group.communicator is not None
            and not are_staged(*opened.inputs, *opened.outputs)
        ):
            done = group.start_plan(plan.direct, views_of(opened), timeout, opened)
            if done is not None:
                return done
        body = partial(self._bodies[operation.kind], plan, opened)
        agreed = plan.fingerprint
        if first is not None and first.staging is not None:
            # Ranks whose tensors are on the CPU may run another algorithm: all hear of it at any size.
            agreed = replace(agreed, elsewhere=True)
        return group.collective(agreed, body, timeout, shares=self._shares)

    async def _barrier(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        await self._run(channel, calls.Barrier())

    async def _broadcast(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,) = (*opened.inputs, *opened.outputs)
        call = calls.Broadcast(plan.fingerprint.root, buffer.view)
        await self._on_buffers(opened, channel, call)

    async def _reduce(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,), is_root, reduce = opened.inputs, bool(opened.outputs), plan.reduce
        await load_gradually(self._group, buffer)
        data = buffer.view
        if reduce.needs_prepare:
            if not is_root:  # only the root's tensor changes
                data = scratch(buffer.nbytes)
                await copy_gradually(self._group, data, buffer.view)
            await gradually(self._group, reduce.prepare, data, reduce.itemsize)
        await self._run(channel, calls.Reduce(plan.fingerprint.root, data, reduce))
        if is_root:
            if reduce.needs_finish:
                await gradually(self._group, reduce.finish, data, reduce.itemsize)
            await write_back_gradually(self._group, buffer)

    async def _gather(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,), places = opened.inputs, cut(opened.outputs, opened.into)
        await load_gradually(self._group, buffer)
        own = await self._kept_apart(buffer.view, places) if places else buffer.view
        await self._run(channel, calls.Gather(plan.fingerprint.root, own, places or None))
        await write_back_gradually(self._group, *opened.outputs)

    async def _scatter(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,), sources = opened.outputs, [source.view for source in opened.inputs]
        await load_gradually(self._group, *opened.inputs)
        result = self._place_apart(buffer.view, sources) if sources else buffer.view
        await self._run(channel, calls.Scatter(plan.fingerprint.root, sources or None, result))
        await self._put(result, buffer)

    async def _all_reduce(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,) = opened.inputs
        await load_gradually(self._group, buffer)
        await self._reduce_all(channel, buffer.view, plan.reduce)
        await write_back_gradually(self._group, buffer)

    async def _all_reduce_coalesced(
        self, plan: Plan, opened: Opened[Buffer], channel: Channel
    ) -> None:
        data = scratch(sum(buffer.nbytes for buffer in opened.inputs))
        await self._pack(opened.inputs, data)
        await self._reduce_all(channel, data, plan.reduce)
        await self._unpack(data, opened.outputs)

    async def _reduce_all(self, channel: Channel, data: memoryview, reduce: Reduction) -> None:
        if reduce.needs_prepare:
            await gradually(self._group, reduce.prepare, data, reduce.itemsize)
        await self._run(channel, calls.AllReduce(data, reduce))
        if reduce.needs_finish:
            await gradually(self._group, reduce.finish, data, reduce.itemsize)

    async def _all_gather(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (buffer,), blocks = opened.inputs, cut(opened.outputs, opened.into)
        await load_gradually(self._group, buffer)
        own = await self._kept_apart(buffer.view, blocks)
        await copy_gradually(self._group, blocks[self._group.rank], own)
        await self._run(channel, calls.AllGather(blocks))
        await write_back_gradually(self._group, *opened.outputs)

    async def _all_gather_coalesced(
        self, plan: Plan, opened: Opened[Buffer], channel: Channel
    ) -> None:
        blocks = [scratch(length) for length in opened.into]
        await self._pack(opened.inputs, blocks[self._group.rank])
        await self._run(channel, calls.AllGather(blocks))
        n = len(opened.inputs)
        for rank, block in enumerate(blocks):
            await self._unpack(block, opened.outputs[rank * n : (rank + 1) * n])

    async def _reduce_scatter(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        (place,), sources = opened.outputs, cut(opened.inputs, opened.out_of)
        reduce = plan.reduce
        await load_gradually(self._group, *opened.inputs)
        if reduce.needs_prepare:  # inputs stay as they are
            blocks, sources = sources, [scratch(length) for length in opened.out_of]
            for copy, block in zip(sources, blocks, strict=True):
                await copy_gradually(self._group, copy, block)
                await gradually(self._group, reduce.prepare, copy, reduce.itemsize)
        result = self._place_apart(place.view, sources)
        await self._run(channel, calls.ReduceScatter(sources, result, reduce))
        if reduce.needs_finish:
            await gradually(self._group, reduce.finish, result, reduce.itemsize)
        await self._put(result, place)

    async def _all_to_all(self, plan: Plan, opened: Opened[Buffer], channel: Channel) -> None:
        call = calls.AllToAll(cut(opened.inputs, opened.out_of), cut(opened.outputs, opened.into))
        await self._on_buffers(opened, channel, call)

    # -- memory

    async def _on_buffers(self, opened: Opened[Buffer], channel: Channel, call: Call) -> None:
        """Run ``call``, which reads the inputs and writes the outputs."""
        if not are_staged(*opened.inputs, *opened.outputs):
            await self._run(channel, call)
            return
        await load_gradually(self._group, *opened.inputs)
        await self._run(channel, call)
        await write_back_gradually(self._group, *opened.outputs)

    async def _kept_apart(self, own: memoryview, places: Sequence[memoryview]) -> memoryview:
        """Return ``own``, this rank's data; a copy of it if it lies over ``places``, which are written."""
        if not overlaps_others(own, places, self._group.rank):
            return own
        copy = scratch(len(own))
        await copy_gradually(self._group, copy, own)
        return copy

    def _place_apart(self, place: memoryview, sources: Sequence[memoryview]) -> memoryview:
        """Return where to write a result for `_put`: not over ``sources``, which are still to be sent."""
        is_over = overlaps_others(place, sources, self._group.rank)
        return scratch(len(place)) if is_over else place

    async def _put(self, result: memoryview, buffer: Buffer) -> None:
        """Put what was written in a `_place_apart` into the tensor of ``buffer``."""
        if result is not buffer.view:
            await copy_gradually(self._group, buffer.view, result)
        await write_back_gradually(self._group, buffer)

    async def _pack(self, buffers: Sequence[Buffer], data: memoryview) -> None:
        """Fill ``data`` with the buffers' bytes, one after the other."""
        parts = parts_of([buffer.nbytes for buffer in buffers], data)
        for part, buffer in zip(parts, buffers, strict=True):
            await load_gradually(self._group, buffer)
            await copy_gradually(self._group, part, buffer.view)

    async def _unpack(self, data: memoryview, buffers: Sequence[Buffer]) -> None:
        """Fill the buffers with ``data``, one after the other."""
        parts = parts_of([buffer.nbytes for buffer in buffers], data)
        for part, buffer in zip(parts, buffers, strict=True):
            await copy_gradually(self._group, buffer.view, part)
            await write_back_gradually(self._group, buffer)


def _prepared(plan: Plan, operation: Any, views: Any, otherwise: Start) -> Start:
    """Return what starts ``operation`` by ``plan`` on ``views``, the memory that its tensors have now.

    If that memory has moved, or the plan cannot begin, ``otherwise`` starts the operation.
    """
    start, direct = plan.start, plan.direct
    pointers = [
        (signature.pointer_of, tensor, signature.address_of(tensor))
        for signature, tensor in plan.signed(operation)
    ]

    def start_prepared(operation: Any, timeout: float | None) -> CompletedRecord | Work[Any]:
        # Invariant: the views are those of the tensors' memory, or are not used.
        for pointer_of, tensor, address in pointers:
            if pointer_of(tensor) != address:
                return otherwise(operation, timeout)
        started: CompletedRecord | Work[Any] | None = start(direct, views, timeout, operation)
        return otherwise(operation, timeout) if started is None else started

    return start_prepared
