"""What one rank sends to one peer: eager and rendezvous protocols, credit, fair turns on the
stream.

The receiver buffers at most its window of messages without a posted receive. A small message goes
out at once (eager) and is charged to the credit that the window gave. The credit comes back when
the message has left the receiver's buffer. A large message is announced (REQUEST) and goes when the
receiver has a place for it (GRANT). It goes in parts, so that other messages get their turn in
between. With no credit left, messages are held here, and the receiver asks for those it has a
receive for (STALLED, WANT). A flood under one tag therefore never keeps another tag from its
receive.

The protocols are those of MPI implementations (e.g. Gropp and Lusk, "A high-performance MPI
implementation on a shared-memory vector supercomputer", 1997; Liu et al. on credits, 2003).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call

from aiodist.completion import Pending
from aiodist.errors import ProtocolError
from aiodist.p2p.shm_sender import Call, ShmSender
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import ANY_KEY, COLLECTIVE, TENSOR, FrameType, Key, encode, request_meta

EAGER_BYTES = 1 << 20
"""Messages up to this length go at once. Copying an unexpected one costs less than a round trip."""

HOST_EAGER_BYTES = 128 << 10
"""The same limit if the receiver may read longer ones in this process's memory."""

JOINED_BYTES = 2048
"""Payloads up to this length are copied behind their header: one buffer costs less than two."""

CHUNK_BYTES = 1 << 20
"""Length of a part of a large message on the stream. Other messages get their turn between two parts."""

MESSAGE_COST = 2048
"""Bytes charged for each message beside its payload, for the receiver's bookkeeping. Measured: 1.6
kB for a message alone under its key, 0.8 kB for one of many."""

MOST_WANTED = 1024
"""Keys of receives at the peer that are remembered until a message for them is sent."""

_PARTS_A_TURN = 4

_IN_FLIGHT = 2
"""Parts handed to the stream ahead: one is being sent, the next is right behind it."""


def head_of(key: Key, meta: bytes, length: int) -> bytes:
    """Return the header of a whole message, which precedes its payload."""
    return encode(FrameType.EAGER, key, length=length, meta=meta)


class Send(Pending[None]):
    """An outgoing message; completes when its memory may be overwritten."""

    __slots__ = ("data", "id", "key", "meta", "offset", "outbox", "ticket", "unsent")

    def __init__(self, key: Key, data: memoryview, meta: bytes) -> None:
        super().__init__()
        self.key = key
        self.data = data
        self.meta = meta
        self.id = 0
        self.ticket = 0
        self.offset = 0  # of the next part
        self.unsent = len(data)  # bytes of parts that have not left
        self.outbox: Outbox | None = None

    def sent(self, error: BaseException | None) -> None:
        if error is None:
            self.complete(None)
        elif self.outbox is not None:
            self.outbox.keep_undelivered(self)


class Outbox:
    """The sending half of a peer."""

    def __init__(
        self, call_after_turn: Callable[[Callable[[], None]], object], part_sent: Callable[[], None]
    ) -> None:
        """Create an outbox without a connection.

        ``call_after_turn(callback)``: calls it after the other work of the loop had its turn.
        ``part_sent()``: called whenever a part of a long message has left.
        """
        self._call_after_turn = call_after_turn
        self._on_part_sent = part_sent
        self._pumping = False
        self.connection: Connection | None = None
        """To the peer; None before the first message has made it, or the peer has."""
        self._error: BaseException | None = None
        self._early: list[bytes] = []  # control frames from before the connection
        self.held: deque[Send] = deque()
        """Messages that wait for credit."""
        self._requested: dict[int, Send] = {}
        self.bulk: deque[Send] = deque()
        """Granted messages whose parts are being sent."""
        self._stranded: list[Send] = []  # their stream broke
        self._in_flight = 0
        self._next_id = 0
        self.credit = 0
        """Bytes that may still be sent before the receiver has taken some."""
        self._reserve = 0
        self._stalled = False
        self._statements = 0  # STALLED frames that were sent.
        self._asked_all = 0  # The number of the last one for all keys.
        self._asked_again: dict[Key, int] = {}  # Since then, of the last one for each key.
        self._wanted: Counter[Key] = Counter()  # receives that no held message is for
        self._forgot = False  # that the peer wants other keys, too
        self.shm: ShmSender | None = None
        """Carries messages to a rank that shares memory with this one, before any other path."""

    # -- from this rank

    def send(self, message: Send) -> None:
        message.outbox = self
        if self._error is not None:
            message.fail(self._error)
        elif self.connection is None:
            self.held.append(message)
        elif message.key[0] != COLLECTIVE and self.put(
            head_of(message.key, message.meta, len(message.data)), message.data, call
        ):
            message.complete(None)
        elif self._stalled and message.key in self._wanted:
            self._wanted[message.key] -= 1
            if not self._wanted[message.key]:
                del self._wanted[message.key]
            self._offer(message, self.connection, wanted=True)
        elif self.held or not self._offer(message, self.connection):
            self._hold(message)

    def put(self, head: bytes, data: memoryview, call: Call) -> bool:
        """Send a point-to-point message through shared memory if there is room for it now.

        ``head``: its `head_of`. ``call``: as of `ShmSender.put`.
        """
        shm = self.shm
        return shm is not None and not self.held and shm.put(head, data, call)

    def post(self, head: bytes, data: memoryview) -> bool:
        """Send a message of at most HOST_EAGER_BYTES over the stream if it can go now.

        Returns whether it was sent. What the stream does not take at once is copied.
        """
        connection, length = self.connection, len(data)
        cost = length + MESSAGE_COST
        if (
            connection is None
            or length > HOST_EAGER_BYTES
            or self.held
            or self._error is not None
            or self.credit - cost < self._reserve
        ):
            return False
        self.credit -= cost
        self._count(TENSOR)
        if length <= JOINED_BYTES:
            connection.send((head + data,))
        else:
            connection.send((head, data))
            connection.release(data)
        return True

    def control(self, frame: bytes, payload: Sequence[bytes] = ()) -> None:
        """Send a control frame; it is never held back."""
        if self.connection is not None:
            self.connection.send([frame, *payload])
        elif self._error is None:
            self._early.append(b"".join((frame, *payload)))

    def withdraw(self, message: Send) -> bool:
        """Take a message back. Returns False if it is on the stream already, or was never here.

        In both cases the caller may reuse its memory: what the stream has still to take of it is
        copied.
        """
        if message in self.held:
            self.held.remove(message)
            return True
        is_requested = self._requested.get(message.id) is message
        if is_requested or message in self.bulk:
            number, has_gone = 0, False
            if self.shm is not None:
                number = self.shm.withdraw()
                has_gone = is_requested and self.shm.has_read(message.id)
                self.shm.answered(message.id)
            # The peer waits for this frame if it has seen the word, whichever message it has read.
            id = 0 if has_gone else message.id
            self.control(encode(FrameType.WITHDRAW, (0, 0, number), id=id))
            if has_gone:
                # The receive may be cancelled nevertheless, and the message be granted to the next one.
                message.data = memoryview(bytes(message.data))
                return False
            if is_requested:
                del self._requested[message.id]
            else:
                self.bulk.remove(message)
            return True
        if not message.done and self.connection is not None:
            self.connection.release(message.data)
        return False

    def connected(self, connection: Connection, window: int, shm: ShmSender | None = None) -> None:
        """Use the stream, which is proven; the receiver buffers up to ``window`` bytes."""
        self.connection = connection
        self.shm = shm
        self.credit = window
        # Eager messages leave room for announcements, which cost little.
        self._reserve = window // 8
        early, self._early = self._early, []
        for frame in early:
            connection.send([frame])
        self._drain(connection)

    def fail(self, error: BaseException) -> None:
        """Fail every message that waits, and all later ones: the peer is lost."""
        self._error = error
        if self.shm is not None:
            self.shm.fail()
        announced = [self._answered(send_id) for send_id in list(self._requested)]
        waiting = [*self.held, *filter(None, announced), *self.bulk, *self._stranded]
        self._stranded.clear()
        self.held.clear()
        self.bulk.clear()
        for message in waiting:
            message.fail(error)

    def keep_undelivered(self, message: Send) -> None:
        """Keep ``message``, whose stream broke. `fail` reports what became of the peer."""
        if self._error is not None:
            message.fail(self._error)
        else:
            self._stranded.append(message)

    # -- from the receiver

    def granted(self, send_id: int, ticket: int) -> None:
        if ticket < 1:
            raise ProtocolError(f"a grant names receive {ticket}, and their numbers begin with 1")
        message = self._answered(send_id)
        if message is not None:
            message.ticket = ticket
            message.offset = 0
            self.bulk.append(message)
            self._pump()

    def released(self, send_id: int) -> None:
        message = self._answered(send_id)
        if message is not None:
            message.complete(None)

    def credited(self, amount: int) -> None:
        self.credit += amount
        if self.connection is not None:
            self._drain(self.connection)

    def wanted(self, key: Key, statement: int) -> None:
        # Invariant: each receive is asked for once by what counts here. What was sent before the peer
        # read the last statement for the key is void: the peer asks again for what is posted then.
        if statement < self._asked_again.get(key, self._asked_all):
            return
        if not self._stalled or self.connection is None:
            return
        for message in self.held:
            if message.key == key:
                self.held.remove(message)
                self._offer(message, self.connection, wanted=True)
                return
        if key in self._wanted or len(self._wanted) < MOST_WANTED:
            self._wanted[key] += 1
        else:
            self._forgot = True

    # -- inside

    def _answered(self, send_id: int) -> Send | None:
        """Return the announced message, which its receiver reads no more, or None."""
        message = self._requested.pop(send_id, None)
        if message is not None and self.shm is not None:
            self.shm.answered(send_id)
        return message

    def _offer(self, message: Send, connection: Connection, wanted: bool = False) -> bool:
        """Send a message or its announcement. Returns False if the credit does not allow it."""
        length = len(message.data)
        cost = length + MESSAGE_COST
        # A message that the receiver asked for may also use the reserve. Beyond the credit only
        # its announcement goes: the receive may have been cancelled by now.
        floor = 0 if wanted else self._reserve
        if self._is_short(length) and (self.credit - cost >= floor or (wanted and not length)):
            self.credit -= cost
            self._count(message.key[0])
            header = head_of(message.key, message.meta, length)
            if length <= JOINED_BYTES:
                connection.send((header + message.data,), message.sent)
            else:
                connection.send((header, message.data), message.sent)
            return True
        if length and (wanted or self.credit >= MESSAGE_COST):
            self.credit -= MESSAGE_COST
            self._count(message.key[0])
            self._next_id += 1
            message.id = self._next_id
            self._requested[message.id] = message
            shm = self.shm
            address = 0 if shm is None else shm.announce(message.id, message.data)
            meta = request_meta(address, message.meta)
            header = encode(FrameType.REQUEST, message.key, id=message.id, length=length, meta=meta)
            connection.send((header,))
            return True
        return False

    def _is_short(self, length: int) -> bool:
        """Return whether a message of this length goes over the stream without a grant."""
        if length <= HOST_EAGER_BYTES:
            return True
        return length <= EAGER_BYTES and (self.shm is None or self.shm.ring is None)

    def _count(self, kind: int) -> None:
        # Count before sending: a callback of the send may send the next message.
        if kind != COLLECTIVE and self.shm is not None:
            self.shm.turn += 1

    def _hold(self, message: Send) -> None:
        # Invariant: a receive that the peer has posted for ``message.key`` is counted in `_wanted`, or the
        # peer asks for it after this message is held. So a posted receive is always reached.
        forgotten = self._forgot and all(other.key != message.key for other in self.held)
        self.held.append(message)
        if forgotten:
            self._ask(message.key if len(self._asked_again) < MOST_WANTED else ANY_KEY)
        self._stall()

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self._ask(ANY_KEY)

    def _ask(self, key: Key) -> None:
        """Ask the peer for its receives for ``key``, or for all of them."""
        self._statements += 1
        if key == ANY_KEY:
            self._asked_all = self._statements
            self._forget()
        else:
            self._asked_again[key] = self._statements
        self.control(encode(FrameType.STALLED, key, id=self._statements))

    def _forget(self) -> None:
        """Forget what the peer has asked for."""
        self._forgot = False
        self._wanted.clear()
        self._asked_again.clear()

    def _drain(self, connection: Connection) -> None:
        while self.held:
            message = self.held.popleft()
            if not self._offer(message, connection):
                self.held.appendleft(message)
                self._stall()
                return
        if self._stalled:
            self._stalled = False
            self._forget()
            self.control(encode(FrameType.STALLED, id=0))

    def _pump(self) -> None:
        # A part may go out at once, and _part_sent is then called from inside send(): the loop
        # here continues by itself. After a turn's worth of parts, other callbacks have their turn.
        connection = self.connection
        if connection is None or self._pumping:
            return
        self._pumping = True
        turn = _PARTS_A_TURN
        while self.bulk and self._in_flight < _IN_FLIGHT and turn:
            turn -= 1
            message = self.bulk.popleft()
            start = message.offset
            part = message.data[start : start + CHUNK_BYTES]
            message.offset = start + len(part)
            if message.offset < len(message.data):
                self.bulk.append(message)
            self._in_flight += 1
            header = encode(FrameType.DATA, id=message.ticket, length=len(part))
            connection.send((header, part), partial(self._part_sent, message, len(part)))
        self._pumping = False
        if self.bulk and not turn:
            self._call_after_turn(self._pump)

    def _part_sent(self, message: Send, length: int, error: BaseException | None) -> None:
        self._in_flight -= 1
        if error is not None:
            self.keep_undelivered(message)
            return
        self._on_part_sent()
        message.unsent -= length
        if not message.unsent:
            message.complete(None)
        self._pump()
