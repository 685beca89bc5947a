"""Point-to-point messages of tensors through one of torch's groups, and the group's life."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from aiodist.backends.polling import awaited
from aiodist.backends.torch_groups.kinds import Here, Lanes, TorchKind
from aiodist.backends.torch_groups.slots import Slot
from aiodist.backends.torch_groups.transfers import Refuse, Transfer, Transfers
from aiodist.backends.torch_groups.wrapped_group import WrappedGroup
from aiodist.deadline import Deadline
from aiodist.errors import (
    CollectiveTimeoutError,
    DistError,
    GroupClosedError,
    InvalidUsageError,
    StoreTimeoutError,
)
from aiodist.groups.collective_backend import Start
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import Received, Recv, RecvNew, Send
from aiodist.groups.operation import Tensor
from aiodist.groups.work import Work
from aiodist.p2p.matching import ANY_SOURCE
from aiodist.store.waiting import limit
from aiodist.tensors import decode_meta, empty_like_message
from aiodist.tensors.meta import pack_meta
from aiodist.tensors.torch_memory import TORCH_DTYPES

Placed = tuple[Slot, Callable[[Lanes], Here]]
"""Where a message goes, and what it comes after there."""

_TAG = 0
"""torch's tag of all transfers: both ends start them in one order."""


class TorchMessages:
    """Sends and receives, in torch's group of the same ranks, and where this rank's part in it is."""

    def __init__(self, group: GroupEngine, kind: TorchKind) -> None:
        self._group = group
        self.kind = kind
        self.torch = WrappedGroup(kind, group)
        self._pairs: dict[int, WrappedGroup] = {}
        self._transfers = Transfers(group)
        self._device: torch.device | None = None
        self.starts: Mapping[str, Start] = {
            Send.kind: self._send,
            Recv.kind: self._recv_into,
            RecvNew.kind: self._recv_new,
        }
        """By the kind of the operation."""

    async def ready(self, deadline: Deadline) -> None:
        """Return when all ranks have opened torch's group. Raises StoreTimeoutError, or why not."""
        try:
            async with asyncio.timeout(limit(deadline)):
                await awaited(self.torch.opened)
        except TimeoutError:
            raise StoreTimeoutError(
                f"not all ranks have opened {self.kind.name} within {deadline.timeout:g} s"
            ) from None
        self.torch.check()

    def close(self) -> None:
        """Give torch's groups back. Idempotent; does not wait."""
        name = self._group.group_name
        self._transfers.stop(GroupClosedError(f"group {name!r} was destroyed", group=name))
        for each in (self.torch, *self._pairs.values()):
            each.close()

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        """Do as `CollectiveBackend.check_tensor`."""
        slot = Slot(tensor, "tensor", self.kind.device, writable=writable)
        self._check_device(slot.device)

    def _send(self, operation: Send, timeout: float | None) -> Work[None]:
        dst, tag = operation.dst, operation.tag
        slot = Slot(operation.tensor, "tensor", self.kind.device, writable=False)
        meta = pack_meta(slot.kind, slot.dtype, slot.shape)
        here = self.here(slot.device)

        async def protocol(transfer: Transfer, context: MessageContext) -> None:
            if not await self._transfers.offer(transfer, self._group.ranks[dst], tag, meta):
                return
            carrier, number = self._between(dst)

            def send(pg: Any) -> Any:
                return pg.send([slot.raw], number, _TAG)

            await carrier.start(slot.load, send, _nothing, here, "send", timeout).over

        return self._group.message("send", dst, tag, self._body(protocol), timeout)

    def _recv_into(self, operation: Recv, timeout: float | None) -> Work[int]:
        slot = Slot(operation.tensor, "tensor", self.kind.device, writable=True)

        def refuse(source: int, meta: bytes) -> BaseException | None:
            _, dtype, shape = decode_meta(meta)
            if dtype == slot.dtype and math.prod(shape) == slot.count:
                return None
            return InvalidUsageError(
                f"rank {source} sent {dtype.name}{list(shape)}, the tensor to receive into is "
                f"{slot.dtype.name}{list(slot.shape)}; the message is dropped"
            )

        # The message comes after what the caller has asked of the tensor's device by now.
        here = self.here(slot.device)
        return self._recv(operation, refuse, lambda _: (slot, here), lambda source: source, timeout)

    def _recv_new(self, operation: RecvNew, timeout: float | None) -> Work[Received]:
        made: list[Any] = []
        device = self.own_device()
        self._bind(device)  # raises before the sender has begun
        callers = self.kind.callers(device)

        def place(meta: bytes) -> Placed:
            kind, dtype, shape = decode_meta(meta)
            with callers():
                if self.kind.device == "cpu":
                    made.append(empty_like_message(kind, dtype, shape).owner)
                else:
                    made.append(torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device))
                slot = Slot(made[0], "tensor", self.kind.device, writable=True)
                # After what the caller's stream still has to do with memory that is used anew.
                return slot, self.here(device)

        def finish(source: int) -> Received:
            return Received(made[0], source)

        return self._recv(operation, None, place, finish, timeout)

    def _recv(
        self,
        operation: Recv | RecvNew,
        refuse: Refuse | None,
        place: Callable[[bytes], Placed],
        finish: Callable[[int], Any],
        timeout: float | None,
    ) -> Work[Any]:
        """Start a receive. ``place(metadata)``: where the message goes. ``finish(source)``: the result."""
        src, tag = operation.src, operation.tag
        source = ANY_SOURCE if src is None else self._group.ranks[src]

        async def protocol(transfer: Transfer, context: MessageContext) -> Any:
            sender, meta = await self._transfers.accept(transfer, source, tag, refuse)
            context.matched(sender)
            carrier, number = self._between(self._group.group_rank(sender))
            try:
                slot, here = place(meta)
            except BaseException:  # the next receive would get what this one leaves
                carrier.give_up()
                raise
            # Cancelled between READY and GO: the message comes all the same, and goes nowhere.
            is_lost = transfer.given_up

            def receive(pg: Any) -> Any:
                return pg.recv([torch.empty_like(slot.raw) if is_lost else slot.raw], number, _TAG)

            store = _nothing if is_lost else slot.store
            await carrier.start(_nothing, receive, store, here, "recv", timeout).over
            return finish(sender)

        return self._group.message("recv", src, tag, self._body(protocol), timeout)

    def own_device(self) -> torch.device:
        """Return the device of this rank's operations, also of those without a tensor."""
        return self._device or self.kind.place(self._group.spec.device)

    def here(self, device: torch.device) -> Callable[[Lanes], Here]:
        """Return `TorchKind.here` for tensors of ``device``. Raises what `_check_device` raises."""
        self._bind(device)
        return self.kind.here(device)

    def _bind(self, device: torch.device) -> None:
        """Let all operations be on ``device`` from now on. Raises what `_check_device` raises."""
        self._check_device(device)
        self._device = device

    def _check_device(self, device: torch.device) -> None:
        """Raise InvalidUsageError for another device than this rank's operations have here.

        torch would begin to connect the ranks anew there, and wait for ranks that do not.
        """
        own, chosen = self._device, self._group.spec.device
        if own is None and chosen is not None:
            own = self.kind.place(chosen)
        if own is not None and device != own:
            raise InvalidUsageError(
                f"the tensor is on {device}, and this rank's part in group "
                f"{self._group.group_name!r} is on {own}: a rank has one device in a "
                f'{self.kind.name} group; pass tensor.to("{own}"), or make another group '
                "with its device_id"
            )

    def _between(self, rank: int) -> tuple[WrappedGroup, int]:
        """Return the torch group of messages between this rank and ``rank``, and the number of ``rank``."""
        if not self.kind.in_pairs:
            return self.torch, rank
        two = sorted((rank, self._group.rank))
        if rank not in self._pairs:
            self._pairs[rank] = WrappedGroup(self.kind, self._group, two)
        return self._pairs[rank], two.index(rank)

    def _body(
        self, protocol: Callable[[Transfer, MessageContext], Any]
    ) -> Callable[[MessageContext], Any]:
        async def body(context: MessageContext) -> Any:
            transfer = Transfer()
            self._transfers.start(transfer, protocol(transfer, context))
            try:
                return await transfer.over
            except (asyncio.CancelledError, CollectiveTimeoutError):
                transfer.give_up()
                raise
            except DistError as error:
                transfer.stop(error)
                raise

        return body


def _nothing() -> None:
    pass
