"""A connection over a stream socket, driven by the loop's readiness callbacks.

The system calls are made here and not by asyncio's transports, for two reasons. A payload goes from
the tensor's memory to the kernel and back without a copy in between. And ``on_sent`` can report
exactly when the kernel has taken the last byte, so that the memory may be reused.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from aiodist.errors import DistNetworkError, summary_of
from aiodist.transport.base_transport import OnSent, Receiver
from aiodist.transport.callbacks import CallbackConnection
from aiodist.transport.pacing import go_by_the_system

READ_BUDGET = 4 << 20
"""Bytes read in one callback before other callbacks get their turn."""

WRITE_BUDGET = 4 << 20
"""Bytes written in one callback, so that other callbacks get their turn."""

SEND_SLICE = 512 << 10
"""Bytes given to the kernel in one call: large enough to hide the call, small enough to be fair."""

SHORT_REST = 4096
"""The rest of a buffer beyond a slice goes along up to this many bytes. Otherwise, after a header,
the rest of a payload would take another call, and a packet, for a few bytes."""

MAX_PARTS = 64
"""Buffers in one ``sendmsg``; far below every system's IOV_MAX."""

DRAIN_SECONDS = 1.0
"""Seconds that ``close`` reads on after the last byte, waiting for the other side's end."""

_BLOCKED = (BlockingIOError, InterruptedError)
_OPEN, _CLOSING, _CLOSED = range(3)
_HAS_SENDMSG = hasattr(socket.socket, "sendmsg")


class SocketConnection(CallbackConnection):
    """One end of a connected stream socket, which it owns. Made inside a running loop."""

    def __init__(self, sock: socket.socket, scheme: str, peer_name: str) -> None:
        super().__init__(scheme, peer_name)
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()  # watched for incoming bytes
        self._out = self._fd  # watched for room for outgoing bytes
        self._state = _OPEN
        self._writing = False  # inside a flush or an on_sent: send() only queues
        self._wants_writer = False
        self._broken = False  # a write failed; what has arrived is still read
        self._end_of_input = False
        self._may_miss_the_end = not isinstance(self._loop, asyncio.BaseEventLoop)
        self._waiter: asyncio.Future[None] | None = None
        self._done: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = ("open", "closing", "closed")[self._state]
        return f"<SocketConnection {self.scheme} to {self.peer_name}, {state}>"

    # Reading

    def start(self, receiver: Receiver) -> None:
        if self._state == _OPEN:
            first = self._receiver is None
            self._receiver = receiver
            if first:
                self._loop.add_reader(self._fd, self._on_readable)
        elif self._ended_unseen:
            self._loop.call_soon(self._tell_lost, receiver, self._ended_unseen.pop())

    def poll(self) -> None:
        if self._receiver is not None and self._state == _OPEN:
            self._on_readable()
        if self._queue:
            self._flush()

    def leaves_host(self) -> None:
        go_by_the_system(self._sock)

    def _on_readable(self) -> None:
        budget = READ_BUDGET
        recv_into = self._sock.recv_into
        while (receiver := self._receiver) is not None:  # looked up anew: received() may change it
            try:
                buffer = receiver.get_buffer()
                size = buffer.nbytes
            except Exception as error:  # noqa: BLE001  # it goes to lost()
                self._end(error)
                return
            try:
                count = recv_into(buffer)
            except _BLOCKED:
                return
            except BaseException as error:  # also of a signal's handler: it has lost the count
                self._end(self._network_error(error))
                if isinstance(error, OSError):
                    return
                raise
            if count == 0:
                self._on_end_of_input()
                return
            try:
                receiver.received(count)
            except Exception as error:  # noqa: BLE001  # it goes to lost()
                self._end(error)
                return
            budget -= count
            # A short read has emptied the socket, so another call would find nothing. A connection
            # that is broken ends after this, so all that has arrived is read.
            if (count < size or budget <= 0) and not self._broken:
                if self._may_miss_the_end and self._receiver is not None and self._ends_behind():
                    self._loop.call_soon(self._read_on)
                return

    def _read_on(self) -> None:
        if self._receiver is not None:
            self._on_readable()

    def _ends_behind(self) -> bool:
        """Return whether the stream has failed or ended behind the bytes that were read, unseen.

        uvloop calls a reader once after a failure, and never again: libuv then stops watching the
        descriptor. If that call finds bytes, the end has to be looked for.
        """
        return bool(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _on_end_of_input(self) -> None:
        if self._state == _OPEN:
            self._end(None)
        else:  # the other side may still read what close() is flushing
            self._end_of_input = True
            self._loop.remove_reader(self._fd)
            self._wake()

    # Writing

    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        if self._state != _OPEN:
            self._report_sent(on_sent, self._closed_error())
            return
        queue = self._queue
        if queue or self._writing:
            self._enqueue(parts, on_sent)
            return
        total = 0
        for part in parts:
            total += part.nbytes if isinstance(part, memoryview) else len(part)
        if 0 < total <= SEND_SLICE + SHORT_REST and len(parts) <= MAX_PARTS:
            try:
                sent = self._write(parts)
            except _BLOCKED:
                sent = 0
            except BaseException as error:  # also of a signal's handler, as in `_on_readable`
                self._enqueue(parts, on_sent)
                self._on_write_error(error)
                if isinstance(error, OSError):
                    return
                raise
            if sent == total:
                if on_sent is not None:
                    self._writing = True
                    try:
                        self._report_sent(on_sent, None)
                    finally:
                        self._writing = self._broken
                    if queue:
                        self._flush()
                return
            self._enqueue(parts, on_sent)
            self._advance(sent)
            self._watch_writable()
        else:
            self._enqueue(parts, on_sent)
            self._flush()

    def _write(self, parts: Sequence[memoryview | bytes]) -> int:
        if len(parts) == 1 or not _HAS_SENDMSG:
            return self._sock.send(parts[0])
        return self._sock.sendmsg(parts)

    def _flush(self) -> None:
        if self._writing:
            return
        self._writing = True
        budget = WRITE_BUDGET
        try:
            while self._queue and budget > 0:
                batch, size = self._next_batch()
                try:
                    sent = self._write(batch) if size else 0
                except _BLOCKED:
                    break
                budget -= sent
                self._advance(sent)
                if sent < size:
                    break
        except BaseException as error:  # also of a signal's handler, as in `_on_readable`
            self._on_write_error(error)
            if isinstance(error, OSError):
                return
            raise
        self._writing = self._broken
        self._watch_writable()
        if not self._queue:
            self._wake()

    def _next_batch(self) -> tuple[list[memoryview], int]:
        """Return the front of the queue, as much as one call should carry, and its length in bytes."""
        batch: list[memoryview] = []
        size = 0
        most = MAX_PARTS if _HAS_SENDMSG else 1
        for view, _ in self._queue:
            nbytes, room = view.nbytes, SEND_SLICE - size
            if nbytes > room + SHORT_REST:
                batch.append(view[:room])
                return batch, SEND_SLICE
            if nbytes:
                batch.append(view)
                size += nbytes
            if nbytes >= room:
                break
            if len(batch) == most:
                break
        return batch, size

    def _advance(self, sent: int) -> None:
        """Take ``sent`` bytes off the queue, then report the completed sends."""
        queue = self._queue
        finished: list[OnSent] = []
        while queue:
            view, on_sent = queue[0]
            if view.nbytes > sent:
                if sent:
                    queue[0] = (view[sent:], on_sent)
                break
            queue.popleft()
            sent -= view.nbytes
            if on_sent is not None:
                finished.append(on_sent)
        for on_sent in finished:
            self._report_sent(on_sent, None)

    def _watch_writable(self) -> None:
        wanted = bool(self._queue) and self._state != _CLOSED
        if wanted != self._wants_writer:
            self._wants_writer = wanted
            if wanted:
                self._loop.add_writer(self._out, self._flush)
            elif self._state != _CLOSED:
                self._loop.remove_writer(self._out)

    def _on_write_error(self, error: BaseException) -> None:
        # Report it a turn later: lost() inside send() would surprise the caller, and the last data
        # of the other side may still lie unread in the socket.
        self._broken = self._writing = True
        if self._wants_writer:
            self._wants_writer = False
            self._loop.remove_writer(self._out)
        self._loop.call_soon(self._after_write_error, self._network_error(error))

    def _after_write_error(self, error: DistNetworkError) -> None:
        if self._state == _OPEN:
            self._on_readable()
        self._end(error)

    # Ending

    async def close(self) -> None:
        if self._state == _CLOSED:
            return
        if self._done is not None:  # another task is closing it: share the outcome
            try:
                await asyncio.shield(self._done)
            except asyncio.CancelledError:
                self.abort()
                raise
            return
        self._done = self._loop.create_future()
        self._state = _CLOSING
        # Keep reading and discard the data: two sides that flush to each other must both read.
        if self._receiver is None:
            self._loop.add_reader(self._fd, self._on_readable)
        self._receiver = _Discard()
        try:
            while self._queue and self._is_closing():
                await self._changed()
            if self._is_closing():
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
                # Closing with unread bytes in the socket would send a reset, and a reset
                # destroys what the other side has not read yet.
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        while self._is_closing() and not self._end_of_input:
                            await self._changed()
        finally:
            self.abort()

    def _is_closed(self) -> bool:
        return self._state == _CLOSED

    def _is_closing(self) -> bool:
        return self._state == _CLOSING

    def abort(self) -> None:
        if self._state != _CLOSED:
            self._release()
            self._fail_queue(self._closed_error())

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent's stream stays open.

        No shutdown, which would end the stream for both, and no call to the loop: the child shares
        the parent's epoll instance, and to unregister here would unregister there.
        """
        if self._state != _CLOSED:
            self._state = _CLOSED
            self._receiver = None
            self._queue.clear()
            os.close(self._sock.detach())

    def _end(self, error: BaseException | None) -> None:
        """Handle the end of the stream that this side did not cause, or not yet while close()
        flushes.
        """
        if self._state == _CLOSED:
            return
        receiver, was_open = self._receiver, self._state == _OPEN
        self._release()
        if was_open and receiver is not None:
            self._tell_lost(receiver, error)
        elif was_open:
            self._ended_unseen.append(error)
        self._fail_queue(error or self._ended_error())

    def _release(self) -> None:
        self._state = _CLOSED
        self._receiver = None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._out)
        self._sock.close()
        self._wake()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    # Telling

    async def _changed(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _network_error(self, cause: BaseException) -> DistNetworkError:
        is_systems = isinstance(cause, OSError) and cause.strerror
        reason = is_systems or summary_of(cause)
        error = DistNetworkError(f"the connection to {self.peer_name} failed: {reason}")
        error.__cause__ = cause
        return error


class _Discard:
    """The receiver of a connection that is being closed."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(1 << 16))

    def get_buffer(self) -> memoryview:
        return self._scratch

    def received(self, count: int) -> None:
        pass

    def lost(self, error: BaseException | None) -> None:
        pass
