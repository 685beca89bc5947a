"""Collectives of tensors on a device that the members of the group share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aiodist.backends.algorithm_choice import AlgorithmChoice
from aiodist.backends.devices.area_exchange import DevicePlan, exchange
from aiodist.backends.devices.areas import HALF, Areas
from aiodist.backends.native import NativeBackend
from aiodist.backends.polling import until
from aiodist.backends.torch_groups.slots import Slot, device_of
from aiodist.completion import T
from aiodist.groups.argument_checks import Members
from aiodist.groups.collective_backend import CollectiveBackend, ObjectStream, Start, StreamSettings
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Collective, Opened, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.tensors import reduction
from aiodist.tensors.cuda_streams import on_callers_stream
from aiodist.tensors.pieces import Pieces
from aiodist.tensors.torch_tensor_lists import DeviceReduction
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.tensors.device_memory import DeviceMemory


SMALL = 2 << 20
"""Up to so many bytes a collective goes through the host: two copies take less than the agreement and the
meetings of the other way."""


class DeviceBackend(CollectiveBackend):
    """CUDA tensors: in memory that the ranks map of each other, else through the host.

    Which way it is the ranks agree in each operation (see `areas`), except where all know that it is
    `SMALL`. Messages go through the host.
    """

    name = NativeBackend.name

    def __init__(
        self,
        group: GroupEngine,
        make_memory: Callable[[Any], DeviceMemory],
        device: str = "cuda",
        half: int = HALF,
        small: int = SMALL,
    ) -> None:
        """``make_memory(torch device)``: called at the first operation on each device.

        ``half``, ``small``: bytes, as `HALF` and `SMALL`; all ranks pass the same.
        """
        self._group = group
        self._through_host = NativeBackend(group)
        self._make_memory = make_memory
        self._device = device
        self._half = half
        self._small = small
        self._areas: dict[torch.device, Areas] = {}

    def close(self) -> None:
        self._through_host.close()
        for areas in self._areas.values():
            areas.close()

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        self._through_host.check_tensor(tensor, writable=writable)

    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        return self._through_host.open_stream(settings)

    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        if operation.kind not in _KINDS:
            return self._through_host.start(operation, timeout)
        begin: Any = self._begin
        started: CompletedRecord | Work[T]
        started = self._group.world.as_its_loop(begin, operation, timeout)
        return started

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        if operation.kind in _KINDS:
            slots = self._open(operation)[1]
            device_of(slots)
            if (op := getattr(operation, "op", None)) is not None:
                reduction(op, slots[0].dtype, self._group.size)
        return start

    def _open(self, operation: Collective[None]) -> tuple[Opened[Slot], list[Slot]]:
        """Return its tensors, opened and checked, and all of them in a row."""
        opened = operation.open(partial(Slot, device=self._device), self._group)
        return opened, [*opened.inputs, *opened.outputs]

    def _begin(
        self, operation: Collective[None], timeout: float | None
    ) -> CompletedRecord | Work[None]:
        opened, slots = self._open(operation)
        device = device_of(slots)
        nbytes = _agreed_bytes(operation.kind, opened)
        if nbytes is not None and nbytes <= self._small:
            return self._through_host.start(operation, timeout)
        op: ReduceOp | None = getattr(operation, "op", None)
        dtype, reduce = slots[0].dtype, None
        if op is not None:
            if not DeviceReduction.serves(dtype):
                return self._through_host.start(operation, timeout)
            reduce = DeviceReduction(op, dtype, self._group.size)
        plan = _plan(operation, opened, reduce, self._group)
        if opened.inputs is not opened.outputs and plan.needs_staging(self._group.rank):
            for slot in opened.inputs:
                slot.stage()
            plan = _plan(operation, opened, reduce, self._group)
        if device not in self._areas:
            self._areas[device] = Areas(self._group, self._make_memory(device), self._half)
        areas = self._areas[device]
        memory = areas.memory
        after_caller = memory.after_caller(slots[0].raw)
        through_host = on_callers_stream(_run_through_host)

        def load() -> None:
            for slot in opened.inputs:
                slot.load()

        def store() -> None:
            for slot in opened.outputs:
                slot.store()

        async def body(context: CollectiveContext) -> None:
            await areas.enter()
            try:
                lengths = await areas.meet(context, plan.lengths)
                if lengths is None:
                    await through_host(self._group, context, operation)
                    return
                after_caller()
                for tensor in (tensor for slot in slots for tensor in slot.memory):
                    memory.hold(tensor)
                memory.run(load)
                await exchange(self._group, context, areas, plan, lengths)
                await until(self._group, memory.run(store))
            finally:
                areas.leave()

        agreed = replace(operation.fingerprint(opened), shape=slots[0].shape, elsewhere=True)
        return self._group.collective(agreed, body, timeout)


_KINDS = frozenset(
    {
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "reduce_scatter",
        "all_to_all",
    }
)
"""Operations that may run in device memory."""


def _agreed_bytes(kind: str, opened: Opened[Slot]) -> int | None:
    """Return the bytes of an operation's result, or of its operand if that is longer.

    None if ranks may know different lengths: then they agree on the way.
    """
    if kind in ("gather", "scatter", "all_to_all"):
        return None
    given, taken = (sum(slot.nbytes for slot in each) for each in (opened.inputs, opened.outputs))
    return max(given, taken)


class _GroupOfOneOperation:
    """What the native backend needs of its group for an operation that runs over ``context``."""

    def __init__(self, group: GroupEngine, context: CollectiveContext) -> None:
        self.rank = group.rank
        self.size = group.size
        self.ranks = group.ranks
        self.world = group.world
        self.next_turn = group.next_turn
        self._context = context

    def collective(
        self,
        fingerprint: Fingerprint,
        body: Callable[[CollectiveContext], Coroutine[Any, Any, None]],
        timeout: float | None = None,
        *,
        shares: bool = False,
    ) -> Coroutine[Any, Any, None]:
        return body(self._context)


def _run_through_host(
    group: GroupEngine, context: CollectiveContext, operation: Collective[None]
) -> Any:
    """Return ``operation`` of the native backend as a coroutine over ``context``, to be awaited at once.

    ``context`` brings the fingerprint, the timeout and the sequence number. It has no shared memory.
    """
    one: Any = _GroupOfOneOperation(group, context)
    return NativeBackend(one, AlgorithmChoice(group.world.tables)).start(operation)


def _plan(
    operation: Any, opened: Opened[Slot], reduce: DeviceReduction | None, group: Members
) -> DevicePlan:
    """Return what this rank gives and takes."""
    given = Pieces([slot.raw for slot in opened.inputs])
    lengths = opened.out_of
    if not lengths:  # what is given is for all; in a scatter only the root has something
        is_scatter = operation.kind == "scatter"
        lengths = [0] * group.size if is_scatter else [given.nbytes]
    places = [slot.raw for slot in opened.outputs]
    into: dict[int, Pieces] = {}
    if opened.into:
        if len(places) == 1:
            places = list(torch.split(places[0], list(opened.into)))
        n = len(places) // group.size  # tensors of each rank
        into = {r: Pieces(places[r * n : (r + 1) * n]) for r in range(group.size)}
    elif places:
        source = operation.root if operation.kind in ("broadcast", "scatter") else group.rank
        into = {source: Pieces(places)}
    return DevicePlan(given, lengths, into, reduce)
