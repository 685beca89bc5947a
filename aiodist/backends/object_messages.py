"""Objects from one rank to another: an envelope, and long parts that travel as tensors do.

The envelope is a message of its own kind, matched by tag. Its metadata is the number of its first
part. Parts are messages of kind PART, each with a number that its sender uses once. A part is
therefore read directly from the memory of the sender's object into memory that the receiver's
object keeps.

If the sender refuses an object, it sends an envelope with the reason, which the receiver raises. If
a send is cancelled after its envelope has gone, the parts that can still be withdrawn are replaced
by empty ones, and the receive waits for the next object. If a receive is cancelled after its
envelope has come, the object goes to the next receive, or to the first that asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from time import monotonic_ns
from typing import Any

from aiodist.backends.gradual_copy import run_gradually
from aiodist.backends.sends import Sends
from aiodist.completion import T
from aiodist.errors import DistBackendError, ProtocolError
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.naming import call_of
from aiodist.groups.work import Work
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import Send
from aiodist.tensors import scratch
from aiodist.wire.frames import PART, Key
from aiodist.wire.object_codec import (
    SHORT_HEAD,
    Envelope,
    ObjectCodec,
    Packed,
    read_envelope,
    short_head,
)

_REFUSED = b"refused"
"""Metadata of an envelope that replaces an object which cannot be sent; it holds the reason."""

WITHDRAWN = b"withdrawn"
"""Metadata of an empty part that replaces one that the sender has withdrawn."""

_LONGEST_REASON = 4096
"""The most characters of the reason that are sent."""


class Packing:
    """An object that is being packed. The constructor does the first step, and raises if it is
    refused.
    """

    def __init__(self, codec: ObjectCodec, obj: Any, allow_pickle: bool) -> None:
        self.packed: Packed | None = None
        short = codec.dump_short(obj, allow_pickle=allow_pickle)
        if short is not None:
            self.packed = Packed(short, [])
            return
        self._steps = codec.dump_steps(obj, allow_pickle=allow_pickle)
        try:
            next(self._steps)
        except StopIteration as stop:
            self.packed = stop.value

    async def rest(self, group: GroupEngine) -> Packed:
        """Pack the rest; the loop has its turn between two steps."""
        if self.packed is None:
            self.packed = await run_gradually(group, self._steps)
        return self.packed


class WithdrawnError(Exception):
    """The sender has withdrawn the object."""


class Parcel:
    """An object that has arrived, or whose parts are on their way."""

    def __init__(self, source: int, envelope: Envelope, parts: list[Recv]) -> None:
        self.source = source
        self.envelope = envelope
        self.parts = parts
        self._is_refused = False

    @property
    def is_lost(self) -> bool:
        """Whether it cannot become an object any more."""
        return self._is_refused or any(part.error is not None for part in self.parts)

    def load(
        self, codec: ObjectCodec, memory: list[memoryview], pickle: bool
    ) -> Generator[None, None, Any]:
        """Decode the object; as `ObjectCodec.load_steps`."""
        try:
            return (yield from codec.load_steps(self.envelope, memory, allow_pickle=pickle))
        except Exception:
            self._is_refused = True
            raise

    async def memory(self) -> list[memoryview]:
        """Return the parts when all have come. Raises WithdrawnError."""
        memory = []
        for part in self.parts:
            await part
            assert part.into is not None  # its receive brought it
            memory.append(part.into)
        return memory


class _EnvelopeRecv(Recv):
    """A receive that waits for an envelope, or for a parcel that another receive hands on."""

    __slots__ = ("given",)

    def __init__(self, key: Key, source: int) -> None:
        super().__init__(key, source, None, b"", _take_any, _scratch)
        self.given: Parcel | None = None


class ObjectMessages:
    """The objects that one group's ranks send each other."""

    def __init__(self, group: GroupEngine, sends: Sends, codec: ObjectCodec) -> None:
        self._group = group
        self._sends = sends
        self._codec = codec
        self.next_part = 0
        """The number of the next part that this rank sends."""
        self._waiting: dict[Key, dict[_EnvelopeRecv, None]] = {}
        self._handed_on: dict[Key, list[Parcel]] = {}

    def send(
        self, obj: Any, dst: int, tag: int, kind: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        """Start sending ``obj`` to group rank ``dst``. Raises what `ObjectCodec.dump_steps` raises.

        If the object is refused, the receiver gets the reason.
        """
        try:
            packing = Packing(self._codec, obj, pickle)
        except (TypeError, ValueError) as error:
            self._refuse(error, dst, tag, kind, timeout)
            raise
        packed = packing.packed
        if packed is not None and not packed.parts:
            if self._sends.is_idle:
                to, data = self._group.ranks[dst], memoryview(packed.envelope)
                ended = self._group.send_short((kind, self._group.id, tag), to, data)
                if ended is not None:
                    return self._group.completed_work(ended)
            return self._sends.send(memoryview(packed.envelope), b"", dst, tag, timeout, kind=kind)

        async def start(context: MessageContext) -> Awaitable[object]:
            key = (kind, group.id, tag)
            try:
                packed = await packing.rest(group)
            except (TypeError, ValueError) as error:
                group.messenger.send(group.ranks[dst], key, memoryview(_reason(error)), _REFUSED)
                raise
            return self._start(context, packed, dst, key)

        group = self._group
        nbytes = -1 if packed is None else len(packed.envelope) + sum(map(len, packed.parts))
        return self._sends.in_turn(start, dst, tag, kind, timeout, (b"", nbytes))

    def _refuse(
        self, error: Exception, dst: int, tag: int, kind: int, timeout: float | None
    ) -> None:
        """Tell group rank ``dst`` that no object comes, and why."""
        told = self._sends.send(memoryview(_reason(error)), _REFUSED, dst, tag, timeout, kind=kind)

        def heard() -> None:
            told.exception()

        told._when_done(heard)  # no caller waits for it

    def _start(
        self, context: MessageContext, packed: Packed, dst: int, key: Key
    ) -> Awaitable[object]:
        messenger, to = self._group.messenger, self._group.ranks[dst]
        meta = self.next_part.to_bytes(8, "little")
        envelope = context.sending(messenger.send(to, key, memoryview(packed.envelope), meta))
        return self._sent(to, envelope, self.start_parts(to, packed.parts))

    def start_parts(self, to: int, parts: list[memoryview]) -> list[Send]:
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
        """Replace those ``parts`` that have not gone by empty messages, because the receiver awaits
        them.
        """
        messenger = self._group.messenger
        for part in parts:
            if not part.done and messenger.withdraw_send(to, part):
                messenger.send(to, part.key, memoryview(b""), WITHDRAWN)

    def recv(
        self,
        finish: Callable[[Any, int], T],
        src: int | None,
        tag: int,
        kind: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        """Start receiving an object from group rank ``src``, or from any where None.

        The result is what ``finish(object, global source)`` returns.
        """
        group = self._group
        source = ANY_SOURCE if src is None else group.ranks[src]
        if src is not None and not self._handed_on:
            created = monotonic_ns()
            key = (kind, group.id, tag)
            data = group.take_arrived(key, source)
            if data is not None:
                head = short_head(data)
                if head is not None:
                    try:
                        value = finish(self._codec.load_short(head, allow_pickle=pickle), source)
                    except Exception:  # noqa: BLE001  # the operation raises it, as any other's
                        pass
                    else:
                        facts = (call_of("recv", kind), source, tag, b"", len(data))
                        ended = group.world.recorder.ended(group.label, -1, facts, created)
                        return group.completed_recv(ended, source, value)
                self._handed_on[key] = [Parcel(source, read_envelope(data), [])]

        async def body(context: MessageContext) -> T:
            key = (kind, group.id, tag)
            while True:
                recv = _EnvelopeRecv(key, source)
                parcel = self._handed_parcel(key, source) or await self._parcel(context, recv)
                if parcel is None:  # the object is short: all of it is in the envelope
                    context.matched(recv.source)
                    assert recv.into is not None
                    head = recv.into[SHORT_HEAD:]
                    return finish(self._codec.load_short(head, allow_pickle=pickle), recv.source)
                context.matched(parcel.source)
                try:
                    memory = await parcel.memory()
                    steps = parcel.load(self._codec, memory, pickle)
                    obj = await run_gradually(group, steps)
                except WithdrawnError:
                    context.matched(source)
                    continue
                except BaseException:
                    if not parcel.is_lost:
                        self._hand_on(key, parcel)
                    raise
                return finish(obj, parcel.source)

        return group.message("recv", src, tag, body, timeout, kind=kind)

    def _handed_parcel(self, key: Key, source: int) -> Parcel | None:
        """Take an object whose receive was cancelled, or return None."""
        for parcel in self._handed_on.get(key, ()):
            if source in (parcel.source, ANY_SOURCE):
                self._handed_on[key].remove(parcel)
                if not self._handed_on[key]:
                    del self._handed_on[key]
                return parcel
        return None

    async def _parcel(self, context: MessageContext, recv: _EnvelopeRecv) -> Parcel | None:
        """Wait for an object, and post receives for its parts. Returns None for a short object,
        which is in ``recv``.
        """
        waiting = self._waiting.setdefault(recv.key, {})
        waiting[recv] = None
        try:
            await context.receiving(self._group.messenger.recv(recv))
        finally:
            waiting.pop(recv, None)
            if not waiting and self._waiting.get(recv.key) is waiting:
                del self._waiting[recv.key]
        if recv.given is not None:
            return recv.given
        assert recv.into is not None  # allocated when the message was accepted
        source = recv.source
        if recv.meta == _REFUSED:
            reason = bytes(recv.into).decode(errors="replace")
            raise DistBackendError(f"rank {source} could not send an object: {reason}", rank=source)
        if not recv.meta and short_head(recv.into) is not None:
            return None
        return self.parcel(source, read_envelope(recv.into), recv.meta)

    def parcel(self, source: int, envelope: Envelope, number: bytes) -> Parcel:
        """Post receives for the parts that ``envelope`` announces; ``number``: of the first."""
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
        return Parcel(source, envelope, parts)

    def _hand_on(self, key: Key, parcel: Parcel) -> None:
        """Give an object whose receive was cancelled to the first receive that matches it."""
        for recv in self._waiting.get(key, ()):
            if not recv.done and recv.src in (parcel.source, ANY_SOURCE):
                self._group.messenger.inbox.withdraw(recv)
                recv.given = parcel
                recv.complete(parcel.source)
                return
        self._handed_on.setdefault(key, []).append(parcel)


def _reason(error: Exception) -> bytes:
    text = f"{type(error).__name__}: {error}"
    return text[:_LONGEST_REASON].encode(errors="replace")


def _take_any(recv: Recv, src: int, meta: bytes, length: int) -> None:
    """Accept an envelope of any length; the decoder checks its bytes."""


def _scratch(meta: bytes, length: int) -> memoryview:
    return scratch(length)


def _check_part(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
    if meta == WITHDRAWN:
        return WithdrawnError()
    size = -1 if recv.into is None else len(recv.into)
    if length == size:
        return None
    return ProtocolError(f"rank {src} sent {length} bytes as a part of {size} bytes")
