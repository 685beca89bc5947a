"""A transport that misbehaves on command: it drops, delays, slows, cuts and corrupts.

`FaultyTransport` wraps any transport and passes every check of `check_transport` as long as its
`Faults` inject nothing. A test keeps the `Faults` and changes them while the ranks work::

    faults = {rank: Faults() for rank in range(3)}

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 2:
            faults[2].cut()  # as if its cable were pulled, and the kernel had noticed
        await dist.all_reduce(tensor)  # PeerLostError on every rank, naming rank 2

    await run_ranks(3, main, "tcp", wrap=lambda rank, t: FaultyTransport(t, faults[rank]))
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

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
from aiodist.transport.callbacks import CallbackConnection

SLICE_BYTES = 256 << 10
"""What a slowed connection hands on at a time, at most."""

SILENT_BYTES = 1 << 20
"""What a silent connection takes, as a kernel's buffer would, before sends wait for ever."""


class Faults:
    """What goes wrong on the connections of the transports that share this object.

    ``delay`` (seconds) and ``bytes_per_second`` apply to what is sent on a wrapped connection,
    in order, and may be assigned at any time; wrap both sides to slow both directions. They are
    for each connection. All of it belongs to the thread of the event loop.

    A context manager: leaving it is `mend`.
    """

    def __init__(self, *, delay: float = 0.0, bytes_per_second: float = math.inf) -> None:
        """Create faults that inject nothing but these.

        Args:
            delay: Seconds by which what is sent comes later.
            bytes_per_second: How fast each connection sends.

        Raises:
            InvalidUsageError: A value is negative or no number.
        """
        if delay < 0 or math.isnan(delay):
            raise InvalidUsageError(f"delay must be at least 0 seconds, not {delay}")
        if not bytes_per_second > 0:
            raise InvalidUsageError(f"bytes_per_second must be above 0, not {bytes_per_second}")
        self.delay = delay
        self.bytes_per_second = bytes_per_second
        self.sent_bytes = 0
        """Bytes handed on to the real connections so far."""
        self._open: set[FaultyConnection] = set()
        self._dropped: list[Connection] = []
        self._drops = 0
        self._marks: list[tuple[int, int]] = []  # position among the bytes sent, bits to flip
        self._actions: list[tuple[int, Callable[[], object]]] = []
        self._is_cut = False
        self._is_silent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.mend()

    @property
    def connections(self) -> tuple[FaultyConnection, ...]:
        """The open connections, to cut or silence one of them."""
        return tuple(self._open)

    def cut(self) -> None:
        """End every connection now, as seen from both sides; new ones are refused until `mend`."""
        self._is_cut = True
        for connection in self.connections:
            connection.cut()

    def silence(self) -> None:
        """Drop all data in both directions from now on, without an error on either side.

        It is like a pulled cable or a half-open connection. What is sent vanishes (after 1 MiB,
        sends wait for ever), and nothing arrives. Connecting runs into its deadline. The other
        side does not see a ``close`` or ``abort`` on this side before `mend`.
        """
        self._is_silent = True
        for connection in self.connections:
            connection.silence()

    def drop(self, count: int = 1) -> None:
        """Let the next sends vanish whole, reported as sent.

        Args:
            count: How many sends; an aiodist rank sends a frame a time.
        """
        self._drops += count

    def corrupt(self, offset: int = 0, bits: int = 0x01) -> None:
        """Flip bits of a byte of what will be sent.

        Args:
            offset: How many bytes on the byte stands.
            bits: A mask of the bits, 1 to 255.

        Raises:
            InvalidUsageError: A value is out of range.
        """
        if offset < 0 or not 0 < bits < 256:
            raise InvalidUsageError(
                f"offset must be at least 0 and bits 1 to 255, not {offset} and {bits}"
            )
        self._marks.append((self.sent_bytes + offset, bits))

    def after(self, count: int, action: Callable[[], object]) -> None:
        """Call ``action()`` from the loop soon after some more bytes have been handed on.

        Args:
            count: How many bytes.
            action: A function without parameters.
        """
        self._actions.append((self.sent_bytes + count, action))

    def mend(self) -> None:
        """New connections are made as usual. What was cut stays cut, what is silent is cut.

        What `drop`, `corrupt` and `after` have still to do is not done.
        """
        self._is_cut = self._is_silent = False
        self._drops = 0
        self._marks.clear()
        self._actions.clear()
        for connection in self.connections:
            if connection.is_silent:
                connection.cut()
        dropped, self._dropped = self._dropped, []
        for inner in dropped:
            inner.abort()

    # -- for the wrapped connections

    def _takes(self, view: memoryview) -> memoryview:
        """Count ``view`` as sent; the same bytes, or a damaged copy."""
        begin = self.sent_bytes
        self.sent_bytes = end = begin + view.nbytes
        if self._marks:
            for mark in [mark for mark in self._marks if begin <= mark[0] < end]:
                self._marks.remove(mark)
                damaged = bytearray(view)
                damaged[mark[0] - begin] ^= mark[1]
                view = memoryview(damaged)
        for pair in [pair for pair in self._actions if pair[0] <= end]:
            self._actions.remove(pair)
            asyncio.get_running_loop().call_soon(pair[1])
        return view

    def _takes_drop(self) -> bool:
        if not self._drops:
            return False
        self._drops -= 1
        return True

    @property
    def _interferes(self) -> bool:
        """Whether a send has to be looked at; else it goes straight through."""
        return bool(
            self._marks
            or self._actions
            or self._drops
            or self.delay
            or self.bytes_per_second != math.inf
        )


class FaultyTransport(Transport):
    """``inner``, with ``faults`` on every connection that it makes or accepts."""

    def __init__(self, inner: Transport, faults: Faults) -> None:
        """Wrap a transport.

        Args:
            inner: The real transport.
            faults: What goes wrong on every connection that it makes or accepts.
        """
        self.scheme = inner.scheme
        self._inner = inner
        self._faults = faults

    async def listen(self, on_accept: OnAccept) -> Listener:
        def accept(connection: Connection) -> None:
            if self._faults._is_silent:
                self._faults._dropped.append(connection)
            elif self._faults._is_cut:
                connection.abort()
            else:
                on_accept(FaultyConnection(connection, self._faults))

        return await self._inner.listen(accept)

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        if self._faults._is_silent:
            left = deadline.remaining()
            await asyncio.sleep(left if left < math.inf else 1e9)
            raise DistNetworkError(f"timed out connecting to {address}: Faults.silence() is on")
        connection = await self._inner.connect(address, deadline)
        if self._faults._is_cut:
            connection.abort()
            raise DistNetworkError(
                f"cannot connect to {address}: connection refused, Faults.cut() is on"
            )
        made = FaultyConnection(connection, self._faults)
        if self._faults._is_silent:  # since a moment ago
            made.silence()
        return made


class FaultyConnection(CallbackConnection):
    """One end of a stream, between a real connection and its user."""

    def __init__(self, inner: Connection, faults: Faults) -> None:
        """Wrap a connection; `FaultyTransport` makes it.

        Args:
            inner: The real connection.
            faults: What goes wrong on it.
        """
        super().__init__(inner.scheme, inner.peer_name)
        self.is_silent = False
        self._inner = inner
        self._faults = faults
        self._due: deque[float] = deque()  # when each entry of the queue may go
        self._free_at = 0.0  # when the slowed line has taken what it was given
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False
        self._closed = False
        self._swallowed = 0
        self._flushed: asyncio.Event = asyncio.Event()
        faults._open.add(self)

    def __repr__(self) -> str:
        return f"<FaultyConnection over {self._inner!r}>"

    def cut(self) -> None:
        """End this connection now, as seen from both sides."""
        if self._closed:
            return
        receiver = self._receiver
        error = DistNetworkError(f"the connection to {self.peer_name} was cut by Faults.cut()")
        self._drop_all(self._inner.abort, error)
        if receiver is None:
            self._ended_unseen.append(error)
        else:
            self._loop.call_soon(self._tell_lost, receiver, error)

    def silence(self) -> None:
        """Nothing gets through any more, and neither side is told."""
        self.is_silent = True
        self._swallow()

    def start(self, receiver: Receiver) -> None:
        if self._ended_unseen:
            self._loop.call_soon(self._tell_lost, receiver, self._ended_unseen.pop())
        else:
            self._receiver = receiver
            self._inner.start(_Tap(self, receiver))

    def poll(self) -> None:
        self._inner.poll()

    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        faults = self._faults
        if self._closed:
            self._report_sent(on_sent, self._closed_error())
        elif self.is_silent:
            self._enqueue(parts, on_sent)
            self._swallow()
        elif not self._queue and not faults._interferes:
            faults.sent_bytes += sum(memoryview(part).nbytes for part in parts)
            self._inner.send(parts, on_sent)
        elif faults._takes_drop():
            self._report_sent(on_sent, None)
        else:
            self._enqueue(parts, on_sent)
            due = self._loop.time() + faults.delay
            self._due.extend([due] * (len(self._queue) - len(self._due)))
            self._pump()

    def leaves_host(self) -> None:
        self._inner.leaves_host()

    def release(self, memory: memoryview) -> None:
        super().release(memory)
        self._inner.release(memory)

    async def close(self) -> None:
        if self._closed:
            return
        try:
            while self._queue and not self._closed:
                self._flushed.clear()
                await self._flushed.wait()
            if not self.is_silent and not self._closed:
                await self._inner.close()
        finally:
            self.abort()

    def abort(self) -> None:
        if not self._closed:
            drop = self._faults._dropped.append
            leave = (lambda: drop(self._inner)) if self.is_silent else self._inner.abort
            self._drop_all(leave, self._closed_error())

    def close_in_child(self) -> None:
        self._closed = True
        self._inner.close_in_child()

    # -- inside

    def ended(self, receiver: Receiver, error: BaseException | None) -> None:
        """Hand on that the real connection has ended by itself.

        Args:
            receiver: What reads this connection.
            error: Why it ended; None if the peer closed it.
        """
        if self._closed or self.is_silent:
            return
        self._drop_all(self._inner.abort, error or self._ended_error())
        self._tell_lost(receiver, error)

    def _drop_all(self, leave: Callable[[], object], error: BaseException) -> None:
        self._closed = True
        self._receiver = None
        self._faults._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._flushed.set()
        leave()
        self._fail_queue(error)

    def _swallow(self) -> None:
        while self._queue and self._swallowed < SILENT_BYTES:
            view, on_sent = self._queue.popleft()
            self._swallowed += view.nbytes
            self._report_sent(on_sent, None)
        if not self._queue:
            self._flushed.set()

    def _pump(self) -> None:
        """Hand on what is due; come back for the rest."""
        if self._pumping:
            return
        self._pumping = True
        self._timer = None
        while self._queue and not self._closed and not self.is_silent:
            now = self._loop.time()
            when = max(self._due[0], self._free_at)
            if when > now:
                self._timer = self._loop.call_at(when, self._pump)
                break
            view, on_sent = self._queue[0]
            rate = self._faults.bytes_per_second
            # A hundredth of a second's worth at a time, so that the flow is even.
            most = view.nbytes if rate == math.inf else min(SLICE_BYTES, max(1, int(rate / 100)))
            piece = view[:most]
            if piece.nbytes < view.nbytes:
                self._queue[0] = (view[most:], on_sent)
                on_sent = None
            else:
                self._queue.popleft()
                self._due.popleft()
            self._free_at = max(self._free_at, now) + piece.nbytes / rate
            self._inner.send([self._faults._takes(piece)], on_sent)
        self._pumping = False
        if not self._queue:
            self._flushed.set()


class _Tap:
    """Between the real connection and the receiver: hands bytes on where they lie."""

    def __init__(self, owner: FaultyConnection, receiver: Receiver) -> None:
        self._owner = owner
        self._receiver = receiver

    def get_buffer(self) -> memoryview:
        return self._receiver.get_buffer()

    def received(self, count: int) -> None:
        if not self._owner.is_silent:
            self._receiver.received(count)

    def lost(self, error: BaseException | None) -> None:
        self._owner.ended(self._receiver, error)
