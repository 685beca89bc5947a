"""The operations of a group whose tensors go through one of torch's process groups."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist

from aiodist.backends.algorithm_choice import AlgorithmChoice
from aiodist.backends.native_objects import NativeObjects
from aiodist.backends.sends import Sends
from aiodist.backends.torch_groups.kinds import TorchKind
from aiodist.backends.torch_groups.messages import TorchMessages
from aiodist.backends.torch_groups.reduce_ops import Change, Reducing, reducing
from aiodist.backends.torch_groups.slots import Slot, device_of
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.completion import Pending, T
from aiodist.deadline import Deadline
from aiodist.errors import CollectiveMismatchError, ProtocolError
from aiodist.groups.collective_backend import CollectiveBackend, ObjectStream, Start, StreamSettings
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Collective, Opened, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord


class OpenedCall(NamedTuple):
    """A collective whose tensors have been opened."""

    fingerprint: Fingerprint
    opened: Opened[Slot]
    timeout: float | None


class TorchBackend(CollectiveBackend):
    """Operations on tensors of one kind of device.

    Beside each collective runs a barrier over aiodist's own streams, whose messages carry the
    operation's fingerprint: ranks that disagree, a rank that is gone and one that does not come
    are found by it, as with backend "aiodist". torch's groups would hang, mix up memory, or, with
    Gloo, end the process: there a collective begins after its barrier. Objects travel as bytes over
    aiodist's own streams.
    """

    def __init__(self, group: GroupEngine, kind: TorchKind) -> None:
        self.name = kind.name
        self._group = group
        self._messages = TorchMessages(group, kind)
        self._objects = NativeObjects(group, AlgorithmChoice(group.world.tables), Sends(group))
        self._calls: Mapping[str, Any] = {
            "barrier": self._barrier,
            "broadcast": self._broadcast,
            "reduce": self._reduce,
            "gather": self._gather,
            "scatter": self._scatter,
            "all_reduce": self._all_reduce,
            "all_reduce_coalesced": self._all_reduce,
            "all_gather": self._all_gather,
            "all_gather_coalesced": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "all_to_all": self._all_to_all,
        }
        others = {**self._messages.starts, **self._objects.starts}
        self._starts: Mapping[str, Start] = dict.fromkeys(self._calls, self._collective) | others

    async def ready(self, deadline: Deadline) -> None:
        await self._messages.ready(deadline)

    def ends_group(self, fingerprint: Fingerprint | None, error: BaseException) -> bool:
        """Do as `CollectiveBackend.ends_group`. Only what goes elsewhere goes through torch.

        Where collectives begin once all ranks agree, one of which ranks disagree has begun on no rank.
        """
        if isinstance(error, CollectiveMismatchError):  # the ranks' fingerprints differ
            return not self._messages.kind.agrees_first
        # Where it failed the fingerprint is known, and that rank tells the others.
        return fingerprint is not None and fingerprint.elsewhere

    def close(self) -> None:
        self._messages.close()

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        self._messages.check_tensor(tensor, writable=writable)

    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        return self._objects.streams.open(settings)

    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        begin = self._starts[operation.kind]
        started: CompletedRecord | Work[T] = self._group.world.as_its_loop(
            begin, operation, timeout
        )
        return started

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        call = self._open(operation, None)
        if call.fingerprint.op is not None:
            self._reducing(call, call.opened.inputs[0])
        return start

    def _collective(self, operation: Collective[None], timeout: float | None) -> Work[None]:
        work: Work[None] = self._calls[operation.kind](self._open(operation, timeout))
        return work

    def _open(self, operation: Collective[None], timeout: float | None) -> OpenedCall:
        kind = self._messages.kind
        opened = operation.open(partial(Slot, device=kind.device), self._group)
        return OpenedCall(operation.fingerprint(opened), opened, timeout)

    def _barrier(self, call: OpenedCall) -> Work[None]:
        device = self._messages.own_device()
        options = torch_dist.AllreduceOptions()

        def issue(pg: Any) -> Any:
            return pg.allreduce([torch.zeros(1, device=device)], options)

        return self._issue(call, issue)

    # -- one to all, all to one

    def _broadcast(self, call: OpenedCall) -> Work[None]:
        (slot,) = (*call.opened.inputs, *call.opened.outputs)
        options = torch_dist.BroadcastOptions()
        options.rootRank, options.rootTensor = call.fingerprint.root, 0
        return self._issue(call, lambda pg: pg.broadcast([slot.raw], options))

    def _reduce(self, call: OpenedCall) -> Work[None]:
        (slot,), is_root = call.opened.inputs, bool(call.opened.outputs)
        plan = self._reducing(call, slot)
        options = torch_dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = plan.op, call.fingerprint.root, 0
        data = [slot.raw]

        def issue(pg: Any) -> Any:
            if not is_root:  # only the root's tensor changes
                data[0] = slot.raw.clone()
            _change(plan.prepare, data[0], plan)
            return pg.reduce([data[0].view(plan.seen)], options)

        def finish() -> None:
            if is_root:
                _change(plan.finish, data[0], plan)

        return self._issue(call, issue, finish)

    def _gather(self, call: OpenedCall) -> Work[None]:
        out_of = self._nothing()
        out_of[call.fingerprint.root] = call.opened.inputs[0].nbytes
        return self._deal(call, out_of, call.opened.into or self._nothing())

    def _scatter(self, call: OpenedCall) -> Work[None]:
        into = self._nothing()
        into[call.fingerprint.root] = call.opened.outputs[0].nbytes
        return self._deal(call, call.opened.out_of or self._nothing(), into)

    # -- all to all ranks

    def _all_reduce(self, call: OpenedCall) -> Work[None]:
        """Reduce one tensor in place, and several in a new one that holds all of them."""
        slots = call.opened.inputs
        whole = slots[0].raw if call.fingerprint.operation == "all_reduce" else None
        plan = self._reducing(call, slots[0])
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
                _share_out(data[0], [slot.raw for slot in slots])

        return self._issue(call, issue, finish)

    def _all_gather(self, call: OpenedCall) -> Work[None]:
        slots, lengths = call.opened.inputs, list(call.opened.into)
        places = [place.raw for place in call.opened.outputs]
        if len(set(lengths)) > 1:
            out_of = [sum(slot.nbytes for slot in slots)] * len(lengths)
            return self._deal(call, out_of, lengths, len(lengths))
        if len(places) == 1:
            places = list(torch.split(places[0], lengths))
        joined: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            if len(slots) == 1:
                return pg.allgather([places], [slots[0].raw])
            joined.extend(slots[0].raw.new_empty(length) for length in lengths)
            return pg.allgather([joined], [torch.cat([slot.raw for slot in slots])])

        def finish() -> None:
            n = len(slots)
            for rank, flat in enumerate(joined):
                _share_out(flat, places[rank * n : (rank + 1) * n])

        return self._issue(call, issue, finish)

    def _reduce_scatter(self, call: OpenedCall) -> Work[None]:
        (place,), sources, lengths = call.opened.outputs, call.opened.inputs, call.opened.out_of
        plan = self._reducing(call, place)
        even = len(set(lengths)) == 1
        scatters = even and self._messages.kind.reduces_and_scatters
        start = sum(lengths[: self._group.rank])
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
                place.raw.copy_(data[0][start : start + place.nbytes])
            _change(plan.finish, place.raw, plan)

        async def compare(context: CollectiveContext) -> None:
            for rank, told in enumerate(await _tell_lengths(context, lengths)):
                for came, expected in zip(told, lengths, strict=True):
                    context.check_length(rank, came, expected)

        return self._issue(call, issue, finish, None if even else compare)

    def _all_to_all(self, call: OpenedCall) -> Work[None]:
        return self._deal(call, call.opened.out_of, call.opened.into)

    # -- the two ways in which torch runs a collective

    def _issue(
        self,
        call: OpenedCall,
        issue: Callable[[Any], Any],
        finish: Callable[[], None] | None = None,
        compare: Callable[[CollectiveContext], Coroutine[Any, Any, None]] | None = None,
    ) -> Work[None]:
        """Start ``issue(torch group)`` between loading the inputs and storing the outputs.

        ``compare``: what has to end well before; it takes the place of the barrier. Later collectives
        wait for it too, since torch matches them by their order. Messages do not.
        """
        inputs, outputs = call.opened.inputs, call.opened.outputs
        slots, messages = [*inputs, *outputs], self._messages
        here = messages.here(device_of(slots) if slots else messages.own_device())

        earlier = self._group.take_earlier()
        check = compare or barrier_dissemination
        is_late = compare is not None or bool(earlier) or messages.kind.agrees_first
        may_begin: Pending[bool] = Pending()

        def stage() -> None:
            for slot in inputs:
                slot.load()

        def hand_over() -> None:
            if finish is not None:
                finish()
            for slot in outputs:
                slot.store()

        apart = replace(call.fingerprint, elsewhere=True)

        async def body(context: CollectiveContext) -> None:
            if not is_late:
                may_begin.complete(True)
            name = call.fingerprint.operation
            running = messages.torch.start(
                stage, issue, hand_over, here, name, call.timeout, may_begin
            )
            try:
                await self._group.ends_of(earlier)
                await check(context)
                may_begin.complete(True)
                await running.over
            except BaseException as error:
                if self.ends_group(apart, error):
                    running.leave()
                may_begin.complete(False)
                raise

        return self._group.collective(apart, body, call.timeout)

    def _deal(
        self, call: OpenedCall, out_of: Sequence[int], into: Sequence[int], copies: int = 1
    ) -> Work[None]:
        """Send ``out_of[r]`` bytes of the inputs to rank r; fill ``into[r]`` of the outputs from there.

        The ranks' parts may have unequal lengths, which all ranks compare first. ``copies``: how often the
        inputs follow each other.
        """
        inputs, outputs = call.opened.inputs, call.opened.outputs
        device = (*inputs, *outputs)[0].device
        data: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            flat = _joined([slot.raw for slot in inputs] * copies, device)
            data.append(outputs[0].raw if len(outputs) == 1 else flat.new_empty(sum(into)))
            return pg.alltoall_base(data[0], flat, list(into), list(out_of))

        def finish() -> None:
            if len(outputs) > 1:
                _share_out(data[0], [slot.raw for slot in outputs])

        async def compare(context: CollectiveContext) -> None:
            # Both, so that all ranks find out: torch cannot take back what some have begun.
            ranks = range(context.size)
            given = await _tell_lengths(context, out_of)
            wanted = await _tell_lengths(context, into)
            for sender, receiver in product(ranks, ranks):
                other = receiver if sender == context.rank else sender
                context.check_length(other, given[sender][receiver], wanted[receiver][sender])

        return self._issue(call, issue, finish, compare)

    def _nothing(self) -> list[int]:
        return [0] * self._group.size

    def _reducing(self, call: OpenedCall, slot: Slot) -> Reducing:
        assert call.fingerprint.op is not None
        return reducing(call.fingerprint.op, slot.dtype, self._group.size, self._messages.kind)


def _change(change: Change | None, raw: torch.Tensor, plan: Reducing) -> None:
    """Apply ``change``, of ``plan``, to the elements in ``raw``."""
    if change is not None:
        change(raw.view(plan.seen))


async def _tell_lengths(
    context: CollectiveContext, lengths: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return every rank's ``lengths``, one for each rank, by rank."""
    layout = struct.Struct(f"<{context.size}Q")
    told = await all_gather_new(context, memoryview(layout.pack(*lengths)))
    for data in told:
        if len(data) != layout.size:
            raise ProtocolError(f"{len(data)} bytes are no list of {context.size} lengths")
    return [layout.unpack(data) for data in told]


def _joined(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)


def _share_out(flat: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy the bytes of ``flat`` into ``parts``, one after the other."""
    sources = torch.split(flat, [part.numel() for part in parts])
    for part, source in zip(parts, sources, strict=True):
        part.copy_(source)
