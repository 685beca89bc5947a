"""Point-to-point messages of tensors over the native streams, and their plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aiodist.backends.announcements import decline, is_announcement
from aiodist.backends.gradual_copy import write_back_gradually
from aiodist.backends.plan_cache import PlanCache
from aiodist.backends.sends import Sends
from aiodist.backends.tensor_opening import open_buffer
from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.groups.collective_backend import Start
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import Received, Recv, RecvNew, Send
from aiodist.groups.messaging import MessagePlan
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.p2p.matching import ANY_SOURCE
from aiodist.p2p.matching import Recv as Posted
from aiodist.p2p.shm_sender import RING_BYTES
from aiodist.tensors import Buffer, TensorSignature, decode_meta, empty_like_message, encode_meta
from aiodist.wire.frames import TENSOR, Key


class TensorPlan:
    """What equal sends, or receives from one rank, share: their tensors lie in host memory without gaps."""

    __slots__ = ("_memory", "direct", "start")

    def __init__(
        self, direct: MessagePlan, start: Callable[..., Any], signature: TensorSignature[memoryview]
    ) -> None:
        self.direct = direct
        self.start = start
        self._memory = signature.memory

    def views(self, operation: Send | Recv) -> memoryview | None:
        """Do as `CachedPlan.views`."""
        return self._memory(operation.tensor)


class NativeMessages:
    """Sends, and receives into a tensor or into a new one that the message describes."""

    def __init__(self, group: GroupEngine, sends: Sends, plans: PlanCache) -> None:
        """``sends``, ``plans``: those of the group."""
        self._group = group
        self._as_its_loop = group.world.as_its_loop
        self._sends = sends
        self._plans = plans
        self.starts: Mapping[str, Start] = {
            Send.kind: partial(self._as_its_loop, self._send),
            Recv.kind: partial(self._as_its_loop, self._recv),
            RecvNew.kind: partial(self._as_its_loop, self._recv_new),
        }
        """By the kind of the operation."""

    def _plan(
        self, start: Callable[..., Any], operation: Send | Recv, buffer: Buffer, other: int
    ) -> None:
        """Cache a plan of messages like this one, which is from or to group rank ``other``."""
        if buffer.is_staged or not 0 < buffer.nbytes <= RING_BYTES:
            return
        key, group = operation.key(), self._group
        if self._plans.get(key) is None and (signature := buffer.signature(_itself)) is not None:
            where = TENSOR, group.id, operation.tag
            meta, peer = encode_meta(buffer), group.ranks[other]
            direct = MessagePlan(operation.kind, peer, where, meta, buffer.nbytes)
            self._plans.add(key, TensorPlan(direct, start, signature))

    def _send_by_plan(
        self, plan: MessagePlan, data: memoryview, timeout: float | None, operation: Send
    ) -> CompletedRecord | None:
        """Send ``data`` if it can go at once; as `CachedPlan.start`."""
        return self._group.send_at_once(plan, data) if self._sends.is_idle else None

    def _send(self, operation: Send, timeout: float | None) -> Work[None]:
        tensor, dst, tag = operation.tensor, operation.dst, operation.tag
        buffer = open_buffer(tensor, "tensor", writable=False)
        self._plan(self._send_by_plan, operation, buffer, dst)
        is_there = None
        if buffer.staging is not None:
            is_there = buffer.staging.load()
        elif buffer.is_staged:
            load_now(buffer)
        return self._sends.send(buffer.view, encode_meta(buffer), dst, tag, timeout, is_there)

    def _recv_by_plan(
        self, plan: MessagePlan, data: memoryview, timeout: float | None, operation: Recv
    ) -> CompletedRecord | Work[int]:
        """Receive into ``data``, now or later; as `CachedPlan.start`."""
        group, blocks = self._group, operation.blocks
        if ended := group.recv_at_once(plan, data, blocks):
            # A caller that blocks has named the source, which is the whole result.
            if blocks:
                return ended
            peer, owner = plan.peer, operation.tensor
            return group.received(ended, peer, peer, plan.key, plan.meta, data, owner)
        recv = Posted(plan.key, plan.peer, data, plan.meta, self._check, owner=operation.tensor)
        return self._as_its_loop(group.recv_posted, plan.facts, recv, None, timeout)

    def _recv(self, operation: Recv, timeout: float | None) -> Work[int]:
        tensor, src, tag = operation.tensor, operation.src, operation.tag
        group, buffer = self._group, open_buffer(tensor, "tensor", writable=True)
        if src is not None:
            self._plan(self._recv_by_plan, operation, buffer, src)

        def make(key: Key, source: int) -> Posted:
            return Posted(key, source, buffer.view, encode_meta(buffer), self._check)

        def finish(source: int) -> int:
            buffer.write_back()
            return source

        if buffer.staging is None:
            last_step = finish if buffer.is_staged else None
            return group.recv(make, last_step, src, tag, timeout)

        async def body(context: MessageContext) -> int:
            source = ANY_SOURCE if src is None else group.ranks[src]
            recv = make((TENSOR, group.id, tag), source)
            sender = await context.receiving(group.messenger.recv(recv))
            context.matched(sender)
            await write_back_gradually(group, buffer)
            return sender

        facts = (encode_meta(buffer), buffer.nbytes)
        return group.message("recv", src, tag, body, timeout, facts)

    def _check(self, recv: Posted, src: int, meta: bytes, length: int) -> BaseException | None:
        """Compare a message with the tensor of its receive, as `p2p.matching.Check`."""
        if is_announcement(meta):
            return decline(self._group, src, meta)
        (_, dtype, shape), (_, own_dtype, own_shape) = decode_meta(meta), decode_meta(recv.expect)
        if dtype == own_dtype and recv.into is not None and length == len(recv.into):
            return None
        return InvalidUsageError(
            f"rank {src} sent {dtype.name}{list(shape)}, the tensor to receive into is "
            f"{own_dtype.name}{list(own_shape)}; the message is dropped"
        )

    def _recv_new(self, operation: RecvNew, timeout: float | None) -> Work[Received]:
        made: list[Buffer] = []

        def allocate(meta: bytes, length: int) -> memoryview:
            kind, dtype, shape = decode_meta(meta)
            made[:] = [empty_like_message(kind, dtype, shape)]
            return made[0].view

        def make(key: Key, source: int) -> Posted:
            return Posted(key, source, None, b"", check, allocate)

        def check(recv: Posted, src: int, meta: bytes, length: int) -> BaseException | None:
            if is_announcement(meta):
                return decline(self._group, src, meta)
            _, dtype, shape = decode_meta(meta)
            if math.prod(shape) * dtype.itemsize != length:
                return ProtocolError(f"rank {src} sent {length} bytes as {dtype.name}{list(shape)}")
            return None

        def finish(source: int) -> Received:
            return Received(made[0].owner, source)

        return self._group.recv(make, finish, operation.src, operation.tag, timeout)


def load_now(buffer: Buffer) -> None:
    """Fill a staged copy that was opened with ``load=False``."""
    for _ in buffer.load_parts(buffer.nbytes + 1):
        pass


def _itself(view: memoryview) -> memoryview:
    return view
