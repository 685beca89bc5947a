"""Streams between ranks of one process and one loop: addresses ``inproc:N``.

The same byte stream as over a socket, without a socket: ``send`` queues, and a later turn of
the loop copies from the sender's memory into the receiver's, once.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.transport.base_transport import (
    Connection,
    Listener,
    OnAccept,
    OnSent,
    Receiver,
    Transport,
)
from aiodist.transport.callbacks import CallbackConnection, hand_over

SCHEME = "inproc"

COPY_BUDGET = 4 << 20
"""Bytes copied in one turn of the loop before other callbacks get their turn."""

CHUNKS_A_TURN = 256
"""Buffers filled in one turn of the loop: many tiny ones take time as well."""


class InprocHub:
    """The meeting point of the ranks of one process, which all of them pass to InprocTransport."""

    def __init__(self) -> None:
        self.listeners: dict[str, InprocListener] = {}
        """By address."""
        self._count = 0

    def new_address(self) -> str:
        self._count += 1
        return f"{SCHEME}:{self._count}"


class InprocListener(Listener):
    """An address on the hub."""

    def __init__(self, hub: InprocHub, on_accept: OnAccept) -> None:
        self.address = hub.new_address()
        self.on_accept = on_accept
        self._hub = hub
        hub.listeners[self.address] = self

    async def close(self) -> None:
        self._hub.listeners.pop(self.address, None)


class InprocTransport(Transport):
    """Connects ranks that share ``hub``."""

    scheme = SCHEME

    def __init__(self, hub: InprocHub) -> None:
        self._hub = hub

    async def listen(self, on_accept: OnAccept) -> InprocListener:
        return InprocListener(self._hub, on_accept)

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        if not address.startswith(f"{SCHEME}:"):
            raise InvalidUsageError(f"not an in-process address: {address!r}; write inproc:N")
        await asyncio.sleep(0)  # as over a socket, the call suspends before it is connected
        listener = self._hub.listeners.get(address)
        if listener is None:
            raise DistNetworkError(
                f"cannot connect to {address}: connection refused, no rank listens there (any "
                "more) on this hub"
            ) from ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours = InprocConnection(address)
        theirs = InprocConnection(f"a client of {address}")
        ours.join(theirs)
        theirs.join(ours)
        hand_over(theirs, listener.on_accept, address)
        return ours


class InprocConnection(CallbackConnection):
    """One end of a pair. It copies what it has queued into the other end's receiver."""

    def __init__(self, peer_name: str) -> None:
        super().__init__(SCHEME, peer_name)
        self._peer: InprocConnection | None = None
        self._scheduled = False
        self._closed = False  # sends fail, and nothing is delivered here any more
        self._finished = False  # the queue is empty, too
        self._flushed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._finished else "closing" if self._closed else "open"
        return f"<InprocConnection to {self.peer_name}, {state}>"

    def join(self, peer: InprocConnection) -> None:
        """Make ``peer`` the other end."""
        self._peer = peer

    def start(self, receiver: Receiver) -> None:
        if self._ended_unseen:
            self._loop.call_soon(self._tell_lost, receiver, self._ended_unseen.pop())
        elif not self._closed:
            self._receiver = receiver
            if self._peer is not None:
                self._peer._schedule()

    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        if self._closed:
            self._report_sent(on_sent, self._closed_error())
            return
        self._enqueue(parts, on_sent)
        self._schedule()

    def _schedule(self) -> None:
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        budget = COPY_BUDGET
        for _ in range(CHUNKS_A_TURN):
            peer = self._peer
            if not self._queue or peer is None or budget <= 0:
                break
            view, on_sent = self._queue[0]
            if view.nbytes:
                count = peer._take(view)
                if count == 0:  # the receiver's start() will schedule this again
                    return
                budget -= count
                if not self._queue:  # aborted from within
                    break
                if count < view.nbytes:
                    view, on_sent = self._queue[0]  # release() may have been called meanwhile
                    self._queue[0] = (view[count:], on_sent)
                    continue
            self._queue.popleft()
            self._report_sent(on_sent, None)
        if self._queue:
            self._schedule()
        elif self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)

    def _take(self, view: memoryview) -> int:
        """Copy the beginning of ``view`` to the receiver. Returns the bytes, 0 without a receiver."""
        if self._closed:  # a closing end reads and discards, as a socket does
            return view.nbytes
        receiver = self._receiver
        if receiver is None:
            return 0
        try:
            buffer = receiver.get_buffer()
            count = min(buffer.nbytes, view.nbytes)
            if buffer.format != "B":
                buffer = buffer.cast("B")
            buffer[:count] = view[:count]
            receiver.received(count)
        except Exception as error:  # noqa: BLE001  # it goes to lost()
            self._end(error)
            return view.nbytes
        return count

    async def close(self) -> None:
        if self._finished:
            return
        self._closed = True
        self._receiver = None
        if self._peer is not None:
            self._peer._schedule()  # its queue is discarded here, so that it may finish
        try:
            if self._queue:
                if self._flushed is None:
                    self._flushed = self._loop.create_future()
                self._schedule()
                await asyncio.shield(self._flushed)
        finally:
            self.abort()

    def abort(self) -> None:
        self._closed = True
        self._receiver = None
        if self._finished:
            return
        self._finish(self._closed_error())

    def close_in_child(self) -> None:
        """Drop the stream in a forked child, which has its own copy of both ends."""
        self._closed = self._finished = True
        self._receiver = None
        self._queue.clear()

    def _finish(self, error: BaseException) -> None:
        self._finished = True
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        peer, self._peer = self._peer, None
        if peer is not None:
            peer._peer = None
            self._loop.call_soon(peer._end, None)
        self._fail_queue(error)

    def _end(self, error: BaseException | None) -> None:
        """Handle the end of the stream that this side did not cause."""
        if self._finished:
            return
        receiver, was_open = self._receiver, not self._closed
        self._closed = True
        self._receiver = None
        if was_open and receiver is not None:
            self._tell_lost(receiver, error)
        elif was_open:
            self._ended_unseen.append(error)
        self._finish(error or self._ended_error())
