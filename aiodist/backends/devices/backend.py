"""Collectives of tensors on a device that the members of the group share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from aiodist.backends.buffers import (
    check_dtype,
    check_kept,
    check_own,
    check_times,
    digest_of_counts,
)
from aiodist.backends.devices.areas import HALF, Areas
from aiodist.backends.devices.exchange import Plan, exchange
from aiodist.backends.devices.within import native_within
from aiodist.backends.native import NativeBackend
from aiodist.backends.polling import until
from aiodist.backends.sizes import split_lengths
from aiodist.backends.torch_groups.slots import (
    Slot,
    device_of,
    inputs_of,
    lengths_of,
    outputs_of,
)
from aiodist.groups.backend import Tensor
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.tensors.pieces import Pieces
from aiodist.tensors.streams import on_callers_stream
from aiodist.tensors.torch_tensor_lists import DeviceReduction
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.tensors.device_memory import DeviceMemory

ByHost = Callable[[Any], Any]
"""The same operation, of a native backend: the way where the members do not share the device."""


class DeviceBackend(NativeBackend):
    """CUDA tensors: in memory that the ranks map of each other, else through the host.

    Which way it is the ranks agree in each operation (see `areas`). Messages go through the host.
    """

    def __init__(
        self,
        group: GroupEngine,
        make_memory: Callable[[Any], DeviceMemory],
        device: str = "cuda",
        half: int = HALF,
    ) -> None:
        """``make_memory(torch device)``: called at the first operation on each device."""
        super().__init__(group)
        self._make_memory = make_memory
        self._device = device
        self._half = half
        self._areas: dict[torch.device, Areas] = {}

    def close(self) -> None:
        super().close()
        for areas in self._areas.values():
            areas.close()

    # -- one to all, all to one

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        slot = self._slot(tensor, "tensor", writable=not is_root)
        plan = _plan([slot] if is_root else [], {} if is_root else {root: [slot]})
        return self._start(
            Fingerprint("broadcast", slot.dtype, root=root, count=slot.count),
            plan,
            [slot] if is_root else [],
            [] if is_root else [slot],
            timeout,
            lambda native: native.broadcast(tensor, root, None),
        )

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        slot = self._slot(tensor, "tensor", writable=is_root)
        if not DeviceReduction.serves(slot.dtype):
            return super().reduce(tensor, root, op, timeout)
        into = {root: [slot]} if is_root else {}
        return self._start(
            Fingerprint("reduce", slot.dtype, op, root, slot.count),
            _plan([slot], into, reduce=self._on_device(op, slot)),
            [slot],
            [slot] if is_root else [],
            timeout,
            lambda native: native.reduce(tensor, root, op, None),
        )

    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        slot = self._slot(tensor, "tensor", writable=False)
        places = self._outputs(outputs or (), "gather_list", slot)
        if places:
            check_own(places[self._group.own_rank], slot, "gather_list")
        return self._start(
            Fingerprint("gather", slot.dtype, root=root),
            _plan([slot], {rank: [place] for rank, place in enumerate(places)}),
            [slot],
            places,
            timeout,
            lambda native: native.gather(tensor, outputs, root, None),
        )

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        slot = self._slot(output, "tensor", writable=True)
        sources = self._inputs(inputs or (), "scatter_list", slot)
        if sources:
            check_own(sources[self._group.own_rank], slot, "scatter_list")
        lengths = lengths_of(sources) or [0] * self._group.n_ranks
        return self._start(
            Fingerprint("scatter", slot.dtype, root=root),
            _plan(sources, {root: [slot]}, lengths),
            sources,
            [slot],
            timeout,
            lambda native: native.scatter(output, inputs, root, None),
        )

    # -- all to all ranks

    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]:
        slot = self._slot(tensor, "tensor", writable=True)
        if not DeviceReduction.serves(slot.dtype):
            return super().all_reduce(tensor, op, timeout)
        return self._start(
            Fingerprint("all_reduce", slot.dtype, op, count=slot.count),
            _plan([slot], {self._group.own_rank: [slot]}, reduce=self._on_device(op, slot)),
            [slot],
            [slot],
            timeout,
            lambda native: native.all_reduce(tensor, op, None),
        )

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        slots = outputs_of(tensors, "tensors", self._device)
        if not DeviceReduction.serves(slots[0].dtype):
            return super().all_reduce_coalesced(tensors, op, timeout)
        digest = digest_of_counts(slots)
        return self._start(
            Fingerprint("all_reduce_coalesced", slots[0].dtype, op, count=digest),
            _plan(slots, {self._group.own_rank: slots}, reduce=self._on_device(op, slots[0])),
            slots,
            slots,
            timeout,
            lambda native: native.all_reduce_coalesced(tensors, op, None),
        )

    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]:
        slot = self._slot(tensor, "tensor", writable=False)
        places = self._outputs(outputs, "tensor_list", slot)
        check_own(places[self._group.own_rank], slot, "tensor_list")
        total = sum(place.count for place in places)
        return self._start(
            Fingerprint("all_gather", slot.dtype, count=total),
            _plan([slot], {rank: [place] for rank, place in enumerate(places)}),
            [slot],
            places,
            timeout,
            lambda native: native.all_gather(outputs, tensor, None),
        )

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        slots = inputs_of(tensors, "input_tensor_list", self._device)
        rows = [
            self._outputs(row, f"output_tensor_lists[{number}]", slots[0])
            for number, row in enumerate(outputs)
        ]
        rank = self._group.own_rank
        for place, slot in zip(rows[rank], slots, strict=True):
            check_own(place, slot, f"output_tensor_lists[{rank}]")
        places = [place for row in rows for place in row]
        return self._start(
            Fingerprint("all_gather_coalesced", slots[0].dtype, count=digest_of_counts(places)),
            _plan(slots, dict(enumerate(rows))),
            slots,
            places,
            timeout,
            lambda native: native.all_gather_coalesced(outputs, tensors, None),
        )

    def all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float | None) -> Work[None]:
        slot = self._slot(tensor, "input_tensor", writable=False)
        place = self._slot(output, "output_tensor", writable=True)
        size, nbytes = self._group.n_ranks, slot.raw.numel()
        check_times(place, "output_tensor", slot, "input_tensor", size)
        into = {r: Pieces([place.raw[r * nbytes : (r + 1) * nbytes]]) for r in range(size)}
        return self._start(
            Fingerprint("all_gather", slot.dtype, count=place.count),
            Plan(Pieces([slot.raw]), [nbytes], into),
            [slot],
            [place],
            timeout,
            lambda native: native.all_gather_into(output, tensor, None),
        )

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = self._slot(output, "output", writable=True)
        if not DeviceReduction.serves(place.dtype):
            return super().reduce_scatter(output, inputs, op, timeout)
        sources = self._inputs(inputs, "input_list", place)
        check_own(sources[self._group.own_rank], place, "input_list")
        return self._scatter_reduced(
            place,
            sources,
            lengths_of(sources),
            op,
            timeout,
            lambda native: native.reduce_scatter(output, inputs, op, None),
        )

    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = self._slot(output, "output", writable=True)
        if not DeviceReduction.serves(place.dtype):
            return super().reduce_scatter_from(output, tensor, op, timeout)
        source = self._slot(tensor, "input", writable=False)
        check_times(source, "input", place, "output", self._group.n_ranks)
        return self._scatter_reduced(
            place,
            [source],
            [place.raw.numel()] * self._group.n_ranks,
            op,
            timeout,
            lambda native: native.reduce_scatter_from(output, tensor, op, None),
        )

    def _scatter_reduced(
        self,
        place: Slot,
        sources: Sequence[Slot],
        lengths: Sequence[int],
        op: ReduceOp,
        timeout: float | None,
        by_host: ByHost,
    ) -> Work[None]:
        count = sum(source.count for source in sources)
        fingerprint = Fingerprint("reduce_scatter", place.dtype, op, count=count)
        into = {self._group.own_rank: [place]}
        plan = _plan(sources, into, lengths, reduce=self._on_device(op, place))
        return self._start(fingerprint, plan, sources, [place], timeout, by_host)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        sources = inputs_of(inputs, "input_tensor_list", self._device)
        places = self._outputs(outputs, "output_tensor_list", sources[0])
        rank = self._group.own_rank
        check_own(places[rank], sources[rank], "output_tensor_list")
        return self._start(
            Fingerprint("all_to_all", sources[0].dtype),
            _plan(sources, {r: [place] for r, place in enumerate(places)}, lengths_of(sources)),
            sources,
            places,
            timeout,
            lambda native: native.all_to_all(outputs, inputs, None),
        )

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]:
        source = self._slot(tensor, "input", writable=False)
        place = self._slot(output, "output", writable=True)
        check_dtype(place, "output", source)
        size, rank = self._group.n_ranks, self._group.own_rank
        out_of = split_lengths(source.shape, source.raw.numel(), "input", input_splits, size)
        into = split_lengths(place.shape, place.raw.numel(), "output", output_splits, size)
        check_kept(rank, out_of[rank], into[rank])
        parts = torch.split(place.raw, into)
        return self._start(
            Fingerprint("all_to_all", source.dtype),
            Plan(Pieces([source.raw]), out_of, {r: Pieces([p]) for r, p in enumerate(parts)}),
            [source],
            [place],
            timeout,
            lambda native: native.all_to_all_single(
                output, tensor, output_splits, input_splits, None
            ),
        )

    # -- how they run

    def _start(
        self,
        fingerprint: Fingerprint,
        plan: Plan,
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        timeout: float | None,
        by_host: ByHost,
    ) -> Work[None]:
        """``inputs`` are loaded before ``plan`` and ``outputs`` stored after it.

        ``by_host``: the same through the host.
        """
        slots = [*inputs, *outputs]
        device = device_of(slots)
        if device not in self._areas:
            memory = self._make_memory(device)
            self._areas[device] = Areas(self._group, memory, self._half)
        areas = self._areas[device]
        memory = areas.memory
        after_caller = memory.after_caller(slots[0].raw)
        through_host = on_callers_stream(by_host)

        def load() -> None:
            for slot in inputs:
                slot.load()

        def store() -> None:
            for slot in outputs:
                slot.store()

        async def body(context: CollectiveContext) -> None:
            await areas.enter()
            try:
                lengths = await areas.meet(context, plan.lengths)
                if lengths is None:
                    await through_host(native_within(self._group, context))
                    return
                after_caller()
                for tensor in (tensor for slot in slots for tensor in slot.memory):
                    memory.hold(tensor)
                memory.run(load)
                await exchange(self._group, context, areas, plan, lengths)
                await until(self._group, memory.run(store))
            finally:
                areas.leave()

        apart = replace(fingerprint, shape=slots[0].shape, elsewhere=True)
        return self._group.collective(apart, body, timeout)

    def _slot(self, tensor: Tensor, name: str, *, writable: bool) -> Slot:
        return Slot(tensor, name, self._device, writable=writable)

    def _inputs(self, tensors: Sequence[Tensor], name: str, like: Slot) -> list[Slot]:
        return inputs_of(tensors, name, self._device, like)

    def _outputs(self, tensors: Sequence[Tensor], name: str, like: Slot) -> list[Slot]:
        return outputs_of(tensors, name, self._device, like)

    def _on_device(self, op: ReduceOp, slot: Slot) -> DeviceReduction:
        return DeviceReduction(op, slot.dtype, self._group.n_ranks)


def _plan(
    given: Sequence[Slot],
    into: Mapping[int, Sequence[Slot]],
    lengths: Sequence[int] | None = None,
    reduce: DeviceReduction | None = None,
) -> Plan:
    """``lengths`` None: what is given is for all."""
    pieces = Pieces([slot.raw for slot in given])
    places = {rank: Pieces([slot.raw for slot in row]) for rank, row in into.items()}
    return Plan(pieces, [pieces.nbytes] if lengths is None else lengths, places, reduce)
