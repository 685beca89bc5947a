"""Objects from one rank to another: an envelope, and long parts that travel as tensors do.

An object is mostly one message of kind OBJECT, which is matched by tag. A short one is an envelope
without metadata. The only part of a longer one has its envelope as metadata, unless MPI carries it. If
there are more parts, the message is the envelope, and its metadata is the number of the first part.
These parts are messages of kind PART, each with a number that its sender uses once. A part is read
directly from the memory of the sender's object into memory that the receiver's object keeps.

If the sender refuses an object, it sends an envelope with the reason, which the receiver raises. If
a send is cancelled after its envelope has gone, the parts that can still be withdrawn are replaced
by empty ones, and the receive waits for the next object. If a receive is cancelled after its
envelope has come, the object goes to the next receive, or to the first that asks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from operator import attrgetter
from time import monotonic_ns
from typing import Any

from aiodist.backends.gradual_copy import run_gradually
from aiodist.backends.plan_cache import MAX_PLANS
from aiodist.backends.sends import Sends
from aiodist.completion import T, Unfinished
from aiodist.errors import DistBackendError, ProtocolError
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import RecvObject, SendObject
from aiodist.groups.messaging import ObjectPlan
from aiodist.groups.messenger import new_memory, take_any
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.p2p.matching import ANY_SOURCE, Recv, TakesBack
from aiodist.p2p.outbox import Send
from aiodist.tensors import scratch
from aiodist.wire.frames import OBJECT, PART, Key
from aiodist.wire.object_codec import (
    Envelope,
    ObjectCodec,
    Packed,
    finished,
    read_envelope,
    short_head,
)

_REFUSED = b"refused"
"""Metadata of an envelope that replaces an object which cannot be sent; it holds the reason."""

WITHDRAWN = b"withdrawn"
"""Metadata of an empty part that replaces one that the sender has withdrawn."""

_NUMBER_BYTES = 8
"""Of metadata that is a number. Longer metadata is an envelope."""

_MOST_META = 1024
"""The longest envelope that travels as metadata."""

_LONGEST_REASON = 4096
"""The most characters of the reason that are sent."""


def message_of(first: bytes | Packed) -> Packed:
    """Return what `ObjectCodec.dump_at_once` has packed as a message."""
    return first if isinstance(first, Packed) else Packed(first, ())


class Packing:
    """An object that is being packed. The constructor does the first step, and raises if it is refused."""

    def __init__(
        self, codec: ObjectCodec, obj: Any, allow_pickle: bool, first: bytes | Packed | None
    ) -> None:
        """``first``: what `ObjectCodec.dump_at_once` has returned for ``obj``."""
        self.packed = None if first is None else message_of(first)
        if self.packed is None:
            self._steps = codec.dump_steps(obj, allow_pickle=allow_pickle)
            try:
                next(self._steps)
            except StopIteration as stop:
                self.packed = stop.value

    async def rest(self, group: GroupEngine) -> Packed:
        """Pack the rest; the loop has its turn between two steps."""
        if self.packed is None:
            self.packed = await run_gradually(group.next_turn, self._steps)
        return self.packed


class WithdrawnError(Exception):
    """The sender has withdrawn the object."""


class ArrivedObject:
    """An object that has arrived, or whose parts are on their way."""

    def __init__(self, source: int, envelope: Envelope, parts: list[Recv], turn: int = 0) -> None:
        """``turn``: the order in which its message was matched."""
        self.source = source
        self.envelope = envelope
        self.parts = parts
        self.turn = turn
        self._is_refused = False

    @property
    def is_lost(self) -> bool:
        """Whether it cannot become an object any more."""
        return self._is_refused or any(part.error is not None for part in self.parts)

    def load(self, codec: ObjectCodec, pickle: bool) -> Generator[None, None, Any]:
        """Decode the object, whose parts are here; as `ObjectCodec.load_steps`."""
        memory = [part.into for part in self.parts if part.into is not None]
        try:
            return (yield from codec.load_steps(self.envelope, memory, allow_pickle=pickle))
        except Exception:
            self._is_refused = True
            raise

    async def arrival(self) -> None:
        """Wait until all parts have come. Raises WithdrawnError."""
        for part in self.parts:
            await part


class _EnvelopeRecv(Recv):
    """A receive that waits for an envelope, or for an object that another receive hands on."""

    __slots__ = ("finish", "given", "messages", "pickle")

    def __init__(
        self,
        messages: ObjectMessages,
        key: Key,
        source: int,
        finish: Callable[[Any, int], Any],
        pickle: bool,
    ) -> None:
        """``finish``, ``pickle``: those of the `RecvObject`."""
        super().__init__(key, source, None, b"", take_any, new_memory)
        self.messages = messages
        self.finish = finish
        self.pickle = pickle
        self.given: ArrivedObject | None = None

    def end(self, source: int) -> Any:
        """Return the result if the message is a whole object, in one step. Else raise `Unfinished`."""
        meta, codec = self.meta, self.messages.codec
        if self.given is None and (not meta or len(meta) > _NUMBER_BYTES):
            data = self.into
            assert data is not None  # allocated when the message was accepted
            if not meta and (head := short_head(data)) is not None:
                return self.finish(codec.load_short(head, allow_pickle=self.pickle), source)
            arrived_object = self.messages.arrived_object_in(self)
            if not arrived_object.envelope.rows:
                return self.finish(finished(arrived_object.load(codec, self.pickle)), source)
        raise Unfinished(self.rest)

    def hand_back(self, inbox: TakesBack) -> None:
        if self.given is not None:
            self.messages.hand_on(self.key, self.given)
        else:
            super().hand_back(inbox)

    def rest(self, context: MessageContext) -> Coroutine[Any, Any, Any]:
        """Receive what the envelope announces; as the body of `Messaging.message`."""
        return self.messages.receive(context, self)


class ObjectMessages:
    """The objects that one group's ranks send each other."""

    def __init__(self, group: GroupEngine, sends: Sends, codec: ObjectCodec) -> None:
        self._group = group
        self._sends = sends
        self.codec = codec
        self.next_part = 0
        """The number of the next part that this rank sends."""
        self._handed_on: dict[Key, list[ArrivedObject]] = {}
        self._plans: dict[tuple[str, int | None, int], ObjectPlan] = {}
        """By direction, group rank and tag."""

    def _plan(self, what: str, other: int | None, tag: int) -> ObjectPlan:
        """Return a new plan of objects from or to group rank ``other``, and cache it."""
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        peer = ANY_SOURCE if other is None else self._group.ranks[other]
        plan = ObjectPlan(what, peer, (OBJECT, self._group.id, tag))
        self._plans[what, other, tag] = plan
        return plan

    def send(self, operation: SendObject, timeout: float | None) -> CompletedRecord | Work[None]:
        """Start sending an object. Raises what `ObjectCodec.dump_steps` raises.

        If the object is refused, the receiver gets the reason.
        """
        dst, tag = operation.dst, operation.tag
        first = self.codec.dump_at_once(operation.obj, allow_pickle=operation.pickle)
        if isinstance(first, bytes) and self._sends.is_idle:
            plan = self._plans.get(("send", dst, tag)) or self._plan("send", dst, tag)
            ended = self._group.send_short(plan, memoryview(first))
            if ended is not None:
                return ended
        return self._send_packed(first, operation, timeout)

    def _send_packed(
        self, first: bytes | Packed | None, operation: SendObject, timeout: float | None
    ) -> Work[None]:
        """Start sending an object of which ``first`` is packed; as of `Packing`."""
        group, dst, tag = self._group, operation.dst, operation.tag
        try:
            packing = Packing(self.codec, operation.obj, operation.pickle, first)
        except (TypeError, ValueError) as error:
            unheard(self._send_whole(_refusal(error), dst, tag, timeout))
            raise
        packed = packing.packed
        if packed is not None and (whole := self._whole(packed)) is not None:
            return self._send_whole(whole, dst, tag, timeout)

        async def start(context: MessageContext) -> Awaitable[object]:
            try:
                packed = await packing.rest(group)
            except (TypeError, ValueError) as error:
                self._start_whole(_refusal(error), dst, tag)
                raise
            if (whole := self._whole(packed)) is not None:
                return context.sending(self._start_whole(whole, dst, tag))
            to, meta = group.ranks[dst], self.next_part.to_bytes(_NUMBER_BYTES, "little")
            envelope = self._start_whole((memoryview(packed.envelope), meta), dst, tag)
            context.sending(envelope)
            return self._sent(to, envelope, self.start_parts(to, packed.parts))

        nbytes = -1 if packed is None else len(packed.envelope) + sum(map(len, packed.parts))
        return self._sends.in_turn(start, dst, tag, OBJECT, timeout, (b"", nbytes))

    def _whole(self, packed: Packed) -> tuple[memoryview, bytes] | None:
        """Return payload and metadata of the one message that carries all of an object, or None.

        Only the endpoint hands on a long message whose receive is cancelled. MPI drops it, so that
        the part has a receive of its own there, which stays.
        """
        if not packed.parts:
            return memoryview(packed.envelope), b""
        if (
            len(packed.parts) == 1
            and len(packed.envelope) <= _MOST_META
            and self._group.messenger is self._group.endpoint
        ):
            return packed.parts[0], packed.envelope
        return None

    def _send_whole(
        self, whole: tuple[memoryview, bytes], dst: int, tag: int, timeout: float | None
    ) -> Work[None]:
        """Start sending one message: its payload and its metadata."""
        return self._sends.send(*whole, dst, tag, timeout, kind=OBJECT)

    def _start_whole(self, whole: tuple[memoryview, bytes], dst: int, tag: int) -> Send:
        """Do as `_send_whole`, inside a send that is under way."""
        key = (OBJECT, self._group.id, tag)
        return self._group.messenger.send(self._group.ranks[dst], key, *whole)

    def start_parts(self, to: int, parts: Sequence[memoryview]) -> list[Send]:
        """Start sending ``parts`` of one object; their numbers begin with `next_part`."""
        first = self.next_part
        self.next_part += len(parts)
        return [
            self._group.messenger.send(to, (PART, self._group.id, number), data, b"")
            for number, data in enumerate(parts, first)
        ]

    async def _sent(self, to: int, envelope: Send, parts: list[Send]) -> None:
        try:
            await envelope
        except BaseException:
            if not envelope.done and self._group.messenger.withdraw_send(to, envelope):
                for part in parts:
                    self._group.messenger.withdraw_send(to, part)
            else:
                self._take_parts_back(to, parts)
            raise
        await self.parts_sent(to, parts)

    async def parts_sent(self, to: int, parts: list[Send]) -> None:
        """Return when ``parts`` have gone. If cancelled, withdraw those that have not."""
        try:
            for part in parts:
                await part
        except BaseException:
            self._take_parts_back(to, parts)
            raise

    def _take_parts_back(self, to: int, parts: list[Send]) -> None:
        """Replace ``parts`` that have not gone by empty messages, because the receiver awaits them."""
        messenger = self._group.messenger
        for part in parts:
            if not part.done and messenger.withdraw_send(to, part):
                messenger.send(to, part.key, memoryview(b""), WITHDRAWN)

    def recv(self, operation: RecvObject[T], timeout: float | None) -> Work[T]:
        """Start receiving an object."""
        group, src, tag = self._group, operation.src, operation.tag
        plan = self._plans.get(("recv", src, tag)) or self._plan("recv", src, tag)
        key, source = plan.key, plan.peer
        finish, pickle = operation.finish, operation.pickle
        if src is not None and not self._handed_on:
            created = monotonic_ns()
            data = group.take_arrived(plan)
            if data is not None:
                head = short_head(data)
                if head is not None:
                    try:
                        value = finish(self.codec.load_short(head, allow_pickle=pickle), source)
                    except Exception:  # noqa: BLE001  # the operation raises it, as any other's
                        pass
                    else:
                        facts = plan.facts(len(data))
                        ended = group.world.recorder.ended(group.label, -1, facts, created)
                        return group.received(ended, value, source, key, b"", data)
                turn = group.endpoint.inbox.matcher.taken
                envelope = read_envelope(memoryview(data))
                self._handed_on[key] = [ArrivedObject(source, envelope, [], turn)]
        recv = _EnvelopeRecv(self, key, source, finish, pickle)
        recv.given = self._handed_object(recv)
        if recv.given is not None:
            group.endpoint.inbox.matcher.number(recv)  # it is posted if the object is withdrawn
            return group.message("recv", src, tag, recv.rest, timeout, kind=OBJECT)
        return group.recv_posted(plan.facts(-1), recv, recv.end, timeout)

    async def receive(self, context: MessageContext, recv: _EnvelopeRecv) -> Any:
        """Return the result of ``recv``, which has an envelope or an arrived object."""
        while True:
            arrived_object = recv.given or self.arrived_object_in(recv)
            context.matched(arrived_object.source)
            try:
                await arrived_object.arrival()
                obj = await run_gradually(
                    self._group.next_turn, arrived_object.load(self.codec, recv.pickle)
                )
            except WithdrawnError:
                context.matched(recv.src)
            except BaseException:
                if not arrived_object.is_lost:
                    self.hand_on(recv.key, arrived_object)
                raise
            else:
                recv.given = arrived_object  # for `hand_back`
                context.receiving(recv)
                return recv.finish(obj, arrived_object.source)
            order = recv.order
            recv = _EnvelopeRecv(self, recv.key, recv.src, recv.finish, recv.pickle)
            recv.order = order  # before receives that were posted later
            recv.given = self._handed_object(recv)
            if recv.given is None:
                await context.receiving(self._group.messenger.recv(recv))

    def _handed_object(self, recv: Recv) -> ArrivedObject | None:
        """Take an object for ``recv`` whose own receive was cancelled, or return None.

        None also if a message that waits was sent before that object: that is next.
        """
        matcher = self._group.endpoint.inbox.matcher
        for arrived_object in self._handed_on.get(recv.key, ()):
            if recv.src in (arrived_object.source, ANY_SOURCE):
                first = matcher.first(recv.key, arrived_object.source)
                if first is not None and first.order < arrived_object.turn:
                    return None
                self._handed_on[recv.key].remove(arrived_object)
                if not self._handed_on[recv.key]:
                    del self._handed_on[recv.key]
                return arrived_object
        return None

    def arrived_object_in(self, recv: Recv) -> ArrivedObject:
        """Return the object whose message ``recv`` has got. Raises what the sender reports."""
        source, meta, data = recv.source, recv.meta, recv.into
        assert data is not None  # allocated when the message was accepted
        if meta == _REFUSED:
            reason = bytes(data).decode(errors="replace")
            raise DistBackendError(f"rank {source} could not send an object: {reason}", rank=source)
        if len(meta) > _NUMBER_BYTES:
            return ArrivedObject(source, read_envelope(memoryview(meta)), [recv], recv.turn)
        return self.arrived_object(source, read_envelope(data), meta, recv.turn)

    def arrived_object(
        self, source: int, envelope: Envelope, number: bytes, turn: int = 0
    ) -> ArrivedObject:
        """Post receives for the parts that ``envelope`` announces; ``number``: of the first.

        ``turn``: as of `ArrivedObject`.
        """
        if envelope.part_sizes and len(number) != 8:
            raise ProtocolError(f"rank {source} sent an object that does not number its parts")
        first = int.from_bytes(number, "little")
        group_id = self._group.id
        parts = [
            Recv((PART, group_id, first + count), source, scratch(size), b"", _check_part)
            for count, size in enumerate(envelope.part_sizes)
        ]
        for part in parts:
            self._group.messenger.recv(part)
        return ArrivedObject(source, envelope, parts, turn)

    def hand_on(self, key: Key, arrived_object: ArrivedObject) -> None:
        """Give an object whose receive was cancelled to the first receive that matches it."""
        for recv in self._group.receiving(key):
            if isinstance(recv, _EnvelopeRecv) and recv.src in (arrived_object.source, ANY_SOURCE):
                self._group.messenger.inbox.withdraw(recv)
                recv.given = arrived_object
                recv.complete(arrived_object.source)
                return
        insort(self._handed_on.setdefault(key, []), arrived_object, key=attrgetter("turn"))


def unheard(work: Work[Any]) -> None:
    """Note that no caller waits for ``work`` or asks for its error."""
    work._when_done(work._mark_retrieved)


def _refusal(error: Exception) -> tuple[memoryview, bytes]:
    """Return payload and metadata of the message that replaces an object."""
    text = f"{type(error).__name__}: {error}"
    return memoryview(text[:_LONGEST_REASON].encode(errors="replace")), _REFUSED


def _check_part(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
    if meta == WITHDRAWN:
        return WithdrawnError()
    size = -1 if recv.into is None else len(recv.into)
    if length == size:
        return None
    return ProtocolError(f"rank {src} sent {length} bytes as a part of {size} bytes")
