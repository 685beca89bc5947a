"""How the collectives of torch's groups run: in torch's thread, beside a word among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import product
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from aiodist.backends.torch_groups.messages import TorchMessages
from aiodist.backends.torch_groups.slots import Slot, device_of
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.errors import DistBackendError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Opened
from aiodist.groups.sizes import pack_lengths, unpack_lengths
from aiodist.groups.work import Work

Issue = Callable[[Any], Any]


class OpenedCall(NamedTuple):
    """A collective whose tensors have been opened."""

    fingerprint: Fingerprint
    opened: Opened[Slot]
    timeout: float | None


class TorchCollectives:
    """The two ways of all operations: one call of torch's, or parts of unequal lengths."""

    def __init__(self, group: GroupEngine, messages: TorchMessages) -> None:
        """``messages``: has the group's torch group, and its device."""
        self._group = group
        self._messages = messages

    def collective(
        self,
        call: OpenedCall,
        issue: Issue,
        finish: Callable[[], None] | None = None,
        compare: Callable[[CollectiveContext], Coroutine[Any, Any, None]] | None = None,
    ) -> Work[None]:
        """Start ``issue(torch group)`` between loading the inputs and storing the outputs.

        ``compare``: what has to end well before; it takes the place of the barrier. torch's thread
        waits for it, so that operations keep their order.
        """
        inputs, outputs = call.opened.inputs, call.opened.outputs
        slots, messages = [*inputs, *outputs], self._messages
        here = messages.here(device_of(slots) if slots else messages.own_device())

        may_begin: SimpleQueue[bool] = SimpleQueue()  # of which the first counts

        def stage() -> None:
            if not may_begin.get():
                raise DistBackendError("it was given up before it began")
            for slot in inputs:
                slot.load()

        def hand_over() -> None:
            if finish is not None:
                finish()
            for slot in outputs:
                slot.store()

        async def body(context: CollectiveContext) -> None:
            if compare is None:
                may_begin.put(True)
            name = call.fingerprint.operation
            running = messages.torch.start(stage, issue, hand_over, here, name, call.timeout)
            try:
                await (compare or barrier_dissemination)(context)
                may_begin.put(True)
                await running.over
            except BaseException:
                running.leave()
                may_begin.put(False)
                raise

        apart = replace(call.fingerprint, elsewhere=True)
        return self._group.collective(apart, body, call.timeout)

    def deal(self, call: OpenedCall, opened: Opened[Slot], copies: int = 1) -> Work[None]:
        """Send ``out_of[r]`` bytes of the inputs to rank r; fill ``into[r]`` of the outputs from there.

        The way of all operations in which ranks give unequal parts; they compare the lengths first.
        ``opened``: that of ``call``, with all lengths. ``copies``: how often the inputs follow each other.
        """
        inputs, outputs, out_of, into = opened
        device = (*inputs, *outputs)[0].device
        data: list[torch.Tensor] = []

        def issue(pg: Any) -> Any:
            flat = _joined([slot.raw for slot in inputs] * copies, device)
            data.append(outputs[0].raw if len(outputs) == 1 else flat.new_empty(sum(into)))
            return pg.alltoall_base(data[0], flat, list(into), list(out_of))

        def finish() -> None:
            if len(outputs) > 1:
                share_out(data[0], [slot.raw for slot in outputs])

        async def compare(context: CollectiveContext) -> None:
            # Both, so that all ranks find out: torch cannot take back what some have begun.
            ranks = range(context.size)
            given = await tell_lengths(context, out_of)
            wanted = await tell_lengths(context, into)
            for sender, receiver in product(ranks, ranks):
                other = receiver if sender == context.rank else sender
                check_length(context, other, given[sender][receiver], wanted[receiver][sender])

        return self.collective(call, issue, finish, compare)


async def tell_lengths(context: CollectiveContext, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Every rank's ``lengths``, one for each rank, by rank."""
    told = await all_gather_new(context, memoryview(pack_lengths(lengths)))
    return [unpack_lengths(data, context.size) for data in told]


def check_length(context: CollectiveContext, rank: int, came: int, expected: int) -> None:
    """Raise CollectiveMismatchError where ``rank`` has ``came`` bytes and not ``expected``."""
    if came != expected:
        raise context.disagreement(rank, context.meta_words, came, expected)


def _joined(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)


def share_out(flat: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """``flat``'s bytes into ``parts``, one after the other."""
    for part, source in zip(
        parts, torch.split(flat, [part.numel() for part in parts]), strict=True
    ):
        part.copy_(source)
