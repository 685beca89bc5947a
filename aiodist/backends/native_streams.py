"""Streams of objects between two ranks: in order, with back-pressure, and with an end.

Both directions of a stream use messages of kind STREAM with the stream's tag. Their metadata is
one of:

    GRANT    how many items and bytes the receiver buffers; the first message of each side.
    ITEMS    items, each a u32 length and an envelope; they use up the credit of the grant.
    CREDIT   items and bytes that have left the receiver's buffer: their credit returns.
    STOP     the receiver reads no more: further items are thrown away.
    END      the sender sends no more items.
    DONE     the receiver has got the END: it sends neither CREDIT nor STOP any more.

The payload of STOP and END says why, if the rank gave the stream up.

An item with long parts travels alone, and its parts as those of `object_messages`. Each side sends
one END and one DONE. A closed stream takes messages until both have come from the peer, so that
none is left for the next stream with that tag.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from aiodist.backends.gradual_copy import run_gradually
from aiodist.backends.object_messages import (
    ArrivedObject,
    ObjectMessages,
    WithdrawnError,
    message_of,
)
from aiodist.completion import Driver, Pending
from aiodist.errors import (
    DistError,
    GroupClosedError,
    InvalidUsageError,
    ProtocolError,
    StreamClosedError,
    summary_of,
)
from aiodist.groups.collective_backend import ObjectStream, StreamSettings
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.messenger import new_memory, take_any
from aiodist.groups.work import Work
from aiodist.p2p.matching import Recv
from aiodist.wire.frames import STREAM, Key
from aiodist.wire.object_codec import Packed, read_envelope, short_head

GRANT, ITEMS, CREDIT, STOP, END, DONE = b"G", b"I", b"C", b"S", b"E", b"D"
_AMOUNT = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")

BATCH_BYTES = 1 << 16
BATCH_ITEMS = 64
"""The most short items of one turn of the loop that go in one message."""

_next_turn = partial(asyncio.sleep, 0)


class Stream(ObjectStream):
    """One rank's end of a stream, over the messages of a group."""

    def __init__(
        self, group: GroupEngine, messages: ObjectMessages, settings: StreamSettings
    ) -> None:
        self._group = group
        self._messages = messages
        self._codec = messages.codec
        self._to = group.ranks[settings.peer]
        self._peer = settings.peer
        self._key: Key = (STREAM, group.id, settings.tag)
        self._allow_pickle = settings.allow_pickle
        self._error: BaseException | None = None  # that of the group, or of the peer
        # receiving
        self._window = settings.window
        self._max_bytes = settings.max_bytes
        self._buffer: deque[tuple[ArrivedObject | memoryview | bytes, int]] = deque()
        self._room = settings.window  # items that the peer may still send
        self._room_bytes = settings.max_bytes
        self._owed_items = 0  # read, and not yet returned to the peer as credit
        self._owed_bytes = 0
        self._readers: deque[asyncio.Future[None]] = deque()
        self._reading = True
        self._peer_ended = False
        self._why_ended = ""  # if the peer gave the stream up
        # sending
        self._granted = 0  # items that the peer buffers; 0 until it has opened the stream
        self._items = 0  # credit
        self._bytes = 0
        self._writers: deque[asyncio.Future[None]] = deque()
        # Sends that have to wait take the lock, so that none overtakes another. The count is of those that
        # have it or wait for it, also of one that is woken and has not gone on yet.
        self._send_lock = asyncio.Lock()
        self._in_line = 0
        self._parts: Driver[None] | None = None
        """Sends the parts of an object. A peer whose group has ended may never take them, so the end of
        the group ends it."""
        self._batch: list[bytes] = []  # lengths and envelopes, in turn
        self._batch_bytes = 0
        self._ended = False
        self._peer_reads = True
        self._why_stopped = ""  # if the peer gave the stream up
        self._peer_is_done = False
        self._early: list[tuple[bytes, bytes]] | None = []
        """Messages that are held back while an earlier stream with the same peer and tag is not over: the
        peer would take them for messages of that stream."""
        self.over: Pending[None] = Pending()
        """Done when nothing of this stream is under way any more."""
        self._work: Work[None] | None = None

    def start(self, before: Pending[None] | None) -> None:
        """Begin to take messages, after ``before``: an earlier stream with the same peer and tag."""
        self._work = self._group.message(
            "recv",
            self._peer,
            self._key[2],
            lambda context: self._take_messages(context, before),
            math.inf,
            kind=STREAM,
        )
        self._work.is_completed()  # asked once: no caller ever awaits it, so no warning is due

    # -- for users

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                await self.close()
            except BaseException as failed:
                self._give_up(summary_of(failed))  # else the peer would wait for the end
                raise
        else:
            self._give_up(summary_of(error))

    async def __anext__(self) -> Any:
        self._group.world.check_loop()
        while True:
            if self._buffer:
                item, size = self._buffer.popleft()
                if isinstance(item, ArrivedObject):
                    return await self._read(item, size)
                try:
                    return self._codec.load_short(item, allow_pickle=self._allow_pickle)
                finally:
                    self._has_left(size)
            if not self._reading:
                raise InvalidUsageError("this rank has closed the stream: it receives no more")
            if self._peer_ended:
                if self._why_ended:
                    raise self._abandoned(self._why_ended)
                raise StopAsyncIteration
            self._check_error()
            self._return_credit()
            await self._wait(self._readers)

    async def send(self, obj: Any) -> None:
        self._group.world.check_loop()
        self._check_sends()
        if not self._in_line:
            packed = self._codec.dump_at_once(obj, allow_pickle=self._allow_pickle)
            if packed is not None:
                if not isinstance(packed, bytes) or not self._may_send(len(packed)):
                    async with self._own_turn():
                        await self._send(message_of(packed))
                    return
                self._add(packed)
                if len(self._batch) >= 2 * BATCH_ITEMS or self._batch_bytes >= BATCH_BYTES:
                    self._flush()
                    await asyncio.sleep(0)
                return
        steps = self._codec.dump_steps(obj, allow_pickle=self._allow_pickle)
        async with self._own_turn():
            await self._send(await run_gradually(_next_turn, steps))

    async def end(self) -> None:
        self._group.world.check_loop()
        async with self._own_turn():  # sends that wait come first
            if not self._ended and not self._peer_ended:
                self._check_error()
            self._end("")

    async def close(self) -> None:
        self._group.world.check_loop()
        self._stop_reading("")  # first: a send may wait until the peer reads, or closes in turn
        await self.end()

    # -- sending

    @asynccontextmanager
    async def _own_turn(self) -> AsyncIterator[None]:
        """Wait for all sends that were called before."""
        self._in_line += 1
        try:
            async with self._send_lock:
                yield
        finally:
            self._in_line -= 1

    def _check_sends(self) -> None:
        if self._ended:
            raise InvalidUsageError("this rank has ended the stream: it sends no more")
        # A peer that has closed the stream may leave the job at once: that is no loss.
        if not self._peer_reads:
            if why := self._why_stopped or self._why_ended:
                raise self._abandoned(why)
            raise StreamClosedError(f"rank {self._to} has closed the stream: it receives no more")
        self._check_error()

    def _abandoned(self, why: str) -> StreamClosedError:
        return StreamClosedError(f"rank {self._to} gave the stream up: {why}")

    def _may_send(self, size: int) -> bool:
        """Return whether the credit covers an item; an item that is alone may have any size."""
        return self._items > 0 and (self._bytes >= size or self._items == self._granted)

    async def _send(self, packed: Packed) -> None:
        size = len(packed.envelope) + sum(map(len, packed.parts))
        self._check_sends()  # the stream may have ended while other sends had their turn
        while not self._may_send(size):
            self._flush()
            await self._wait(self._writers)
            self._check_sends()
        if not packed.parts:
            self._add(packed.envelope)
            return
        self._flush()
        self._items -= 1
        self._bytes -= size
        number = self._messages.next_part.to_bytes(8, "little")
        self._say(ITEMS + number, _LENGTH.pack(len(packed.envelope)) + packed.envelope)
        parts = self._messages.start_parts(self._to, packed.parts)
        gone = self._group.world.loop.create_future()

        def on_done(_: None, error: BaseException | None) -> None:
            if not gone.done():
                gone.set_result(None) if error is None else gone.set_exception(error)

        self._parts = driver = Driver(self._messages.parts_sent(self._to, parts), on_done)
        driver.start()
        try:
            await gone
        except asyncio.CancelledError as cancelled:
            driver.throw(cancelled)
            raise
        finally:
            self._parts = None

    def _check_error(self) -> None:
        # One object that is raised again and again would collect the traceback of each time.
        if isinstance(self._error, DistError):
            raise self._error.again()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _add(self, envelope: bytes) -> None:
        self._items -= 1
        self._bytes -= len(envelope)
        if not self._batch:
            self._group.world.loop.call_soon(self._flush)
        self._batch += (_LENGTH.pack(len(envelope)), envelope)
        self._batch_bytes += len(envelope)

    def _flush(self) -> None:
        if self._batch and self._error is None:
            batch, self._batch = self._batch, []
            self._batch_bytes = 0
            self._say(ITEMS, b"".join(batch))

    def _say(self, meta: bytes, payload: bytes = b"") -> None:
        if self._early is not None:
            self._early.append((meta, payload))
            return
        self._group.messenger.send(self._to, self._key, memoryview(payload), meta)

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            if self._error is None:
                self._flush()
                self._say(END, why.encode(errors="replace"))

    def _give_up(self, why: str) -> None:
        """Send the end marker, and take no more items. ``why``: the reason."""
        self._end(why)
        self._stop_reading(why)
        self._wake(self._writers)

    def _stop_reading(self, why: str) -> None:
        """Take no more items. ``why``: the reason for giving the stream up, if it is."""
        if self._reading:
            self._reading = False
            self._buffer.clear()
            if self._error is None and not self._peer_ended:
                self._say(STOP, why.encode(errors="replace"))
        self._wake(self._readers)

    # -- receiving

    async def _read(self, arrived_object: ArrivedObject, size: int) -> Any:
        try:
            return await run_gradually(
                _next_turn, arrived_object.load(self._codec, self._allow_pickle)
            )
        except asyncio.CancelledError:
            self._buffer.appendleft((arrived_object, size))
            size = -1
            self._wake(self._readers)
            raise
        finally:
            if size >= 0:
                self._has_left(size)

    def _has_left(self, size: int) -> None:
        """Return credit, in large amounts, for an item that has left the buffer."""
        self._owed_items += 1
        self._owed_bytes += size
        if 2 * self._owed_items >= self._window or 2 * self._owed_bytes >= self._max_bytes:
            self._return_credit()

    def _return_credit(self) -> None:
        if self._owed_items and self._error is None and not self._peer_ended:
            self._room += self._owed_items
            self._room_bytes += self._owed_bytes
            self._say(CREDIT, _AMOUNT.pack(self._owed_items, self._owed_bytes))
            self._owed_items = self._owed_bytes = 0

    async def _take_messages(self, context: MessageContext, before: Pending[None] | None) -> None:
        try:
            if before is not None:
                await before
            early, self._early = self._early, None
            self._say(GRANT, _AMOUNT.pack(self._window, self._max_bytes))
            for meta, payload in early or ():
                self._say(meta, payload)
            while not (self._peer_ended and self._peer_is_done):
                recv = Recv(self._key, self._to, None, b"", take_any, new_memory)
                await context.receiving(self._group.messenger.recv(recv))
                assert recv.into is not None  # allocated when the message was accepted
                await self._take(recv.meta, recv.into)
        except BaseException as error:  # noqa: BLE001  # those that send and receive raise it
            if isinstance(error, GroupClosedError):  # not of a coroutine that is dropped
                self._flush()  # the sends of these objects have returned
            self._error = error
            if self._parts is not None:
                self._parts.throw(error.again() if isinstance(error, DistError) else error)
        finally:
            self.over.complete(None)
            self._wake(self._readers)
            self._wake(self._writers)

    async def _take(self, meta: bytes, data: memoryview) -> None:
        what = meta[:1]
        if what == ITEMS:
            await self._take_items(meta[1:], data)
            self._wake(self._readers)
        elif what in (GRANT, CREDIT) and len(data) == _AMOUNT.size:
            items, size = _AMOUNT.unpack(data)
            if what == GRANT:
                self._granted = items
            self._items += items
            self._bytes += size
            self._wake(self._writers)
        elif what == STOP:
            self._peer_reads = False
            self._why_stopped = bytes(data).decode(errors="replace")
            self._wake(self._writers)
        elif what == END:
            self._peer_ended = True
            self._why_ended = bytes(data).decode(errors="replace")
            self._say(DONE)
            self._wake(self._readers)
        elif what == DONE:
            self._peer_is_done = True
        else:
            raise ProtocolError(f"rank {self._to} sent {meta[:8]!r} into a stream")

    async def _take_items(self, number: bytes, data: memoryview) -> None:
        at, end = 0, len(data)
        while at < end:
            if end - at < _LENGTH.size:
                raise ProtocolError(f"rank {self._to} sent a part of an item into a stream")
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            item = data[at : at + length]
            at += length
            if (head := short_head(item)) is not None:
                self._take_room(length)
                if self._reading:
                    self._buffer.append((head, length))
                continue
            envelope = read_envelope(item)
            size = length + sum(envelope.part_sizes)
            self._take_room(size)
            arrived_object = self._messages.arrived_object(self._to, envelope, number)
            try:
                await arrived_object.arrival()
            except WithdrawnError:  # its send was cancelled
                self._has_left(size)
                continue
            if self._reading:
                self._buffer.append((arrived_object, size))

    def _take_room(self, size: int) -> None:
        """Charge an item of ``size`` bytes. Raises ProtocolError for one beyond the credit.

        Invariant: the peer has seen at most the credit that was sent. As `_may_send`, by this rank's count.
        """
        is_alone = self._room == self._window
        if not self._room or (size > self._room_bytes and not is_alone):
            raise ProtocolError(
                f"rank {self._to} sent more into a stream than this rank's window and max_bytes allow"
            )
        self._room -= 1
        self._room_bytes -= size

    # -- waiting

    async def _wait(self, waiters: deque[asyncio.Future[None]]) -> None:
        waiter = self._group.world.loop.create_future()
        waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in waiters:
                waiters.remove(waiter)

    def _wake(self, waiters: deque[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def is_closed(self) -> bool:
        """Whether this rank neither sends nor receives any more."""
        return self._ended and not self._reading

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "ended" if self._ended else "open"
        return f"<Stream with rank {self._to}, tag {self._key[2]}: {state}>"


class Streams:
    """The streams of one group. At most one at a time has the same peer and tag."""

    def __init__(self, group: GroupEngine, messages: ObjectMessages) -> None:
        self._group = group
        self._messages = messages
        # Messages that are under way keep their stream. One that is over stays only as long as its user
        # keeps it: tags may be numbers that never come again.
        self._last: WeakValueDictionary[tuple[int, int], Stream] = WeakValueDictionary()

    def open(self, settings: StreamSettings) -> Stream:
        """Open a stream. Raises InvalidUsageError if one with the same peer and tag is open."""
        peer, tag = settings.peer, settings.tag
        last = self._last.get((peer, tag))
        if last is not None and not last.is_closed:
            raise InvalidUsageError(
                f"a stream with rank {self._group.ranks[peer]} and tag {tag} is open: close it "
                "first, or pass another tag"
            )
        stream = Stream(self._group, self._messages, settings)
        stream.start(None if last is None or last.over.done else last.over)
        self._last[peer, tag] = stream
        return stream
