"""Point-to-point messages of tensors over the native streams."""

from __future__ import annotations

import math

from aiodist.backends.announcements import decline, is_announcement
from aiodist.backends.calls import Operations
from aiodist.backends.gradual_copy import write_back_gradually
from aiodist.backends.native_objects import NativeObjects
from aiodist.collectives.rule_tables import Tables
from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.groups.backend import Received, Tensor
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.tensors import Buffer, buffer_of, decode_meta, empty_like_message, encode_meta
from aiodist.wire.frames import TENSOR, Key


class NativeMessages(NativeObjects):
    """Sends, and receives into a tensor or into a new one that the message describes."""

    def __init__(
        self, group: GroupEngine, run: Operations | None = None, tables: Tables | None = None
    ) -> None:
        """Arguments as of `NativeObjects`."""
        super().__init__(group, run, tables)
        # Bound directly to spare a call: a small operation does nothing else.
        self.run_cached = self._plans.run_cached  # type: ignore[method-assign]
        self.run_cached_between = self._plans.run_cached_between  # type: ignore[method-assign]
        self.run_cached_without_tensor = self._plans.run_cached_without_tensor  # type: ignore[method-assign]

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        buffer_of(tensor, "tensor", writable=writable, load=False)

    def send_cached(self, tensor: Tensor, dst: int, tag: int) -> CompletedRecord | None:
        return self._message_plans.send(tensor, dst, tag) if self._sends.is_idle else None

    def recv_cached(self, tensor: Tensor, src: int, tag: int) -> CompletedRecord | None:
        return self._message_plans.recv(tensor, src, tag)

    def send(self, tensor: Tensor, dst: int, tag: int, timeout: float | None) -> Work[None]:
        if ended := self.send_cached(tensor, dst, tag):
            return self._group.over(ended)
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)
        self._message_plans.keep("send", buffer, dst, tag)
        is_there = None
        if buffer.staging is not None:
            is_there = buffer.staging.load(0, buffer.count)
        elif buffer.is_staged:
            load_now(buffer)
        return self._sends.send(buffer.view, encode_meta(buffer), dst, tag, timeout, is_there)

    def recv(self, tensor: Tensor, src: int | None, tag: int, timeout: float | None) -> Work[int]:
        group = self._group
        if src is not None and (planned := self._message_plans.find("recv", tensor, src, tag)):
            plan, data = planned
            if ended := group.recv_at_once(plan, data, blocks=False):
                return group.came(ended, plan.peer, plan.peer)
            recv = Recv(plan.key, plan.peer, data, plan.meta, self._check, owner=tensor)
            return group.recv_planned(plan, recv, timeout)
        buffer = buffer_of(tensor, "tensor", writable=True, load=False)
        if src is not None:
            self._message_plans.keep("recv", buffer, src, tag)

        def make(key: Key, source: int) -> Recv:
            return Recv(key, source, buffer.view, encode_meta(buffer), self._check)

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
        return group.carried("recv", src, tag, body, timeout, facts)

    def _check(self, recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
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

    def recv_new(self, src: int | None, tag: int, timeout: float | None) -> Work[Received]:
        made: list[Buffer] = []

        def allocate(meta: bytes, length: int) -> memoryview:
            kind, dtype, shape = decode_meta(meta)
            made[:] = [empty_like_message(kind, dtype, shape)]
            return made[0].view

        def make(key: Key, source: int) -> Recv:
            return Recv(key, source, None, b"", check, allocate)

        def check(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
            if is_announcement(meta):
                return decline(self._group, src, meta)
            _, dtype, shape = decode_meta(meta)
            if math.prod(shape) * dtype.itemsize != length:
                return ProtocolError(f"rank {src} sent {length} bytes as {dtype.name}{list(shape)}")
            return None

        def finish(source: int) -> Received:
            return Received(made[0].owner, source)

        return self._group.recv(make, finish, src, tag, timeout)


def load_now(buffer: Buffer) -> None:
    """Fill a staged copy that was opened with ``load=False``."""
    for _ in buffer.load_parts(buffer.nbytes + 1):
        pass
