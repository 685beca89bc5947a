"""The operations of a group whose tensors go through one of torch's process groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_dist

from aiodist.backends.buffers import (
    check_dtype,
    check_kept,
    check_own,
    check_times,
    digest_of_counts,
)
from aiodist.backends.sizes import split_lengths
from aiodist.backends.torch_groups.collecting import (
    TorchCollectives,
    check_length,
    share_out,
    tell_lengths,
)
from aiodist.backends.torch_groups.reducing import Change, Reducing, reducing
from aiodist.backends.torch_groups.slots import Slot, inputs_of, lengths_of, outputs_of
from aiodist.groups.backend import Tensor
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.work import Work
from aiodist.types import ReduceOp


class TorchBackend(TorchCollectives):
    """Collectives on tensors of one kind of device.

    Beside each of them runs a barrier over aiodist's own streams, whose messages carry the
    operation's fingerprint: ranks that disagree, a rank that is gone and one that does not come
    are found by it, as with backend "aiodist". torch's groups would hang, or mix up memory.
    """

    def barrier(self, timeout: float | None) -> Work[None]:
        device = self._own_device()
        options = torch_dist.AllreduceOptions()
        return self._collective(
            Fingerprint("barrier"),
            [],
            lambda pg: pg.allreduce([torch.zeros(1, device=device)], options),
            [],
            timeout,
        )

    # -- one to all, all to one

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        slot = Slot(tensor, "tensor", self._kind.device, writable=not is_root)
        options = torch_dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        fingerprint = Fingerprint("broadcast", slot.dtype, None, root, slot.count, slot.shape)
        return self._collective(
            fingerprint,
            [slot] if is_root else [],
            lambda pg: pg.broadcast([slot.raw], options),
            [] if is_root else [slot],
            timeout,
        )

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        slot = Slot(tensor, "tensor", self._kind.device, writable=is_root)
        plan = self._reducing(op, slot)
        options = torch_dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = plan.op, root, 0
        data = [slot.raw]

        def issue(pg: Any) -> Any:
            if not is_root:  # only the root's tensor changes
                data[0] = slot.raw.clone()
            _change(plan.prepare, data[0], plan)
            return pg.reduce([data[0].view(plan.seen)], options)

        def finish() -> None:
            if is_root:
                _change(plan.finish, data[0], plan)

        fingerprint = Fingerprint("reduce", slot.dtype, op, root, slot.count, slot.shape)
        outputs = [slot] if is_root else []
        return self._collective(fingerprint, [slot], issue, outputs, timeout, finish)

    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        slot = Slot(tensor, "tensor", self._kind.device, writable=False)
        places = outputs_of(outputs or (), "gather_list", self._kind.device, slot)
        if places:
            check_own(places[self._group.own_rank], slot, "gather_list")
        out_of = self._nothing()
        out_of[root] = slot.raw.numel()
        return self._deal(
            Fingerprint("gather", slot.dtype, root=root, shape=slot.shape),
            [slot],
            places,
            out_of,
            lengths_of(places) or self._nothing(),
            timeout,
        )

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        slot = Slot(output, "tensor", self._kind.device, writable=True)
        sources = inputs_of(inputs or (), "scatter_list", self._kind.device, slot)
        if sources:
            check_own(sources[self._group.own_rank], slot, "scatter_list")
        into = self._nothing()
        into[root] = slot.raw.numel()
        return self._deal(
            Fingerprint("scatter", slot.dtype, root=root, shape=slot.shape),
            sources,
            [slot],
            lengths_of(sources) or self._nothing(),
            into,
            timeout,
        )

    # -- all to all ranks

    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]:
        slot = Slot(tensor, "tensor", self._kind.device, writable=True)
        plan = self._reducing(op, slot)
        fingerprint = Fingerprint("all_reduce", slot.dtype, op, -1, slot.count, slot.shape)
        return self._all_reduce(fingerprint, [slot], slot.raw, plan, timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        slots = outputs_of(tensors, "tensors", self._kind.device)
        plan = self._reducing(op, slots[0])
        fingerprint = Fingerprint(
            "all_reduce_coalesced", slots[0].dtype, op, count=digest_of_counts(slots)
        )
        return self._all_reduce(fingerprint, slots, None, plan, timeout)

    def _all_reduce(
        self,
        fingerprint: Fingerprint,
        slots: Sequence[Slot],
        whole: torch.Tensor | None,
        plan: Reducing,
        timeout: float | None,
    ) -> Work[None]:
        """In ``whole``, where it is one tensor; else in a new one that holds all of them."""
        options = torch_dist.AllreduceOptions()
        options.reduceOp = plan.op
        data: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            flat = torch.cat([slot.raw for slot in slots]) if whole is None else whole
            data.append(flat)
            _change(plan.prepare, flat, plan)
            return pg.allreduce([flat.view(plan.seen)], options)

        def finish() -> None:
            _change(plan.finish, data[0], plan)
            if whole is None:
                share_out(data[0], [slot.raw for slot in slots])

        return self._collective(fingerprint, slots, issue, slots, timeout, finish)

    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]:
        slot = Slot(tensor, "tensor", self._kind.device, writable=False)
        places = outputs_of(outputs, "tensor_list", self._kind.device, slot)
        return self._all_gather("all_gather", [slot], [[p] for p in places], slot.count, timeout)

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        slots = inputs_of(tensors, "input_tensor_list", self._kind.device)
        rows = [
            outputs_of(row, f"output_tensor_lists[{number}]", self._kind.device, slots[0])
            for number, row in enumerate(outputs)
        ]
        name = "all_gather_coalesced"
        return self._all_gather(name, slots, rows, digest_of_counts(slots), timeout)

    def _all_gather(
        self,
        name: str,
        slots: Sequence[Slot],
        rows: Sequence[Sequence[Slot]],
        count: int,
        timeout: float | None,
    ) -> Work[None]:
        """``count``: of the fingerprint, where all ranks give as much."""
        for place, slot in zip(rows[self._group.own_rank], slots, strict=True):
            check_own(place, slot, "the list of outputs")
        places = [place for row in rows for place in row]
        whole = [sum(lengths_of(row)) for row in rows]
        shape = slots[0].shape if len(slots) == 1 else None
        if len(set(whole)) > 1:
            total = sum(place.count for place in places)
            fingerprint = Fingerprint(name, slots[0].dtype, count=total, shape=shape)
            out_of = [sum(lengths_of(slots))] * len(rows)
            return self._deal(fingerprint, slots, places, out_of, whole, timeout, copies=len(rows))
        joined: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            if len(slots) == 1:
                return pg.allgather([[row[0].raw for row in rows]], [slots[0].raw])
            joined.extend(slots[0].raw.new_empty(length) for length in whole)
            return pg.allgather([joined], [torch.cat([slot.raw for slot in slots])])

        def finish() -> None:
            for flat, row in zip(joined, rows, strict=False):
                share_out(flat, [place.raw for place in row])

        fingerprint = Fingerprint(name, slots[0].dtype, count=count, shape=shape)
        return self._collective(fingerprint, slots, issue, places, timeout, finish)

    def all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float | None) -> Work[None]:
        slot = Slot(tensor, "input_tensor", self._kind.device, writable=False)
        place = Slot(output, "output_tensor", self._kind.device, writable=True)
        check_times(place, "output_tensor", slot, "input_tensor", self._group.n_ranks)
        parts = list(place.raw.chunk(self._group.n_ranks)) if place.count else []
        parts = parts or [place.raw] * self._group.n_ranks
        return self._collective(
            Fingerprint("all_gather", slot.dtype, count=slot.count, shape=slot.shape),
            [slot],
            lambda pg: pg.allgather([parts], [slot.raw]),
            [place],
            timeout,
        )

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = Slot(output, "output", self._kind.device, writable=True)
        sources = inputs_of(inputs, "input_list", self._kind.device, place)
        check_own(sources[self._group.own_rank], place, "input_list")
        return self._reduce_scatter(place, sources, lengths_of(sources), op, timeout)

    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = Slot(output, "output", self._kind.device, writable=True)
        source = Slot(tensor, "input", self._kind.device, writable=False)
        check_times(source, "input", place, "output", self._group.n_ranks)
        lengths = [place.raw.numel()] * self._group.n_ranks
        return self._reduce_scatter(place, [source], lengths, op, timeout)

    def _reduce_scatter(
        self,
        place: Slot,
        sources: Sequence[Slot],
        lengths: Sequence[int],
        op: ReduceOp,
        timeout: float | None,
    ) -> Work[None]:
        plan = self._reducing(op, place)
        even = len(set(lengths)) == 1
        scatters = even and self._kind.reduces_and_scatters
        start = sum(lengths[: self._group.own_rank])
        data: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            flat = torch.cat([source.raw for source in sources])  # inputs stay as they are
            data.append(flat)
            _change(plan.prepare, flat, plan)
            if scatters:
                scattering = torch_dist.ReduceScatterOptions()
                scattering.reduceOp = plan.op
                seen = flat.view(plan.seen)
                return pg._reduce_scatter_base(place.raw.view(plan.seen), seen, scattering)
            options = torch_dist.AllreduceOptions()
            options.reduceOp = plan.op
            return pg.allreduce([flat.view(plan.seen)], options)

        def finish() -> None:
            if not scatters:
                place.raw.copy_(data[0][start : start + place.raw.numel()])
            _change(plan.finish, place.raw, plan)

        async def compare(context: CollectiveContext) -> None:
            for rank, told in enumerate(await tell_lengths(context, lengths)):
                for came, expected in zip(told, lengths, strict=True):
                    check_length(context, rank, came, expected)

        count = place.count if even else sum(source.count for source in sources)
        return self._collective(
            Fingerprint("reduce_scatter", place.dtype, op, -1, count, place.shape),
            sources,
            issue,
            [place],
            timeout,
            finish,
            None if even else compare,
        )

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        sources = inputs_of(inputs, "input_tensor_list", self._kind.device)
        places = outputs_of(outputs, "output_tensor_list", self._kind.device, sources[0])
        rank = self._group.own_rank
        check_own(places[rank], sources[rank], "output_tensor_list")
        fingerprint = Fingerprint("all_to_all", sources[0].dtype)
        return self._deal(
            fingerprint, sources, places, lengths_of(sources), lengths_of(places), timeout
        )

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]:
        source = Slot(tensor, "input", self._kind.device, writable=False)
        place = Slot(output, "output", self._kind.device, writable=True)
        check_dtype(place, "output", source)
        size, rank = self._group.n_ranks, self._group.own_rank
        out_of = split_lengths(source.shape, source.raw.numel(), "input", input_splits, size)
        into = split_lengths(place.shape, place.raw.numel(), "output", output_splits, size)
        check_kept(rank, out_of[rank], into[rank])
        fingerprint = Fingerprint("all_to_all", source.dtype, shape=source.shape)
        return self._deal(fingerprint, [source], [place], out_of, into, timeout)

    def _reducing(self, op: ReduceOp, slot: Slot) -> Reducing:
        return reducing(op, slot.dtype, self._group.n_ranks, self._kind)


def _change(change: Change | None, raw: torch.Tensor, plan: Reducing) -> None:
    """Apply ``change``, of ``plan``, to the elements in ``raw``."""
    if change is not None:
        change(raw.view(plan.seen))
