"""The receiving half of a rank: frames in, matched messages out, credit back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.p2p.matching import ANY_SOURCE, Arrival, Matcher, Reader, Recv
from aiodist.p2p.outbox import MESSAGE_COST, Outbox
from aiodist.p2p.partial_message import PartialMessage
from aiodist.shm.message_ring import EagerMessage, RingReader
from aiodist.tensors import scratch
from aiodist.wire.frames import ANY_KEY, COLLECTIVE, Frame, FrameType, Key, encode, requested


class RingSource(Protocol):
    """The messages that a peer puts into its message ring. `ShmReceiver` is one."""

    @property
    def ring(self) -> RingReader | None:
        """The peer's ring, or None if the peer shares no memory with this rank or is lost."""

    def watch(self) -> None:
        """Look for messages that a new receive waits for."""

    def drain_before_stream(self) -> None:
        """Take the messages that were sent before one that comes over the stream, and count that one."""

    def close(self, error: BaseException) -> None:
        """Fail what is on its way: the peer is gone."""


class DirectSource(Protocol):
    """The memory of a peer's process. `DirectReceiver` is one."""

    def begin(self, recv: Recv, address: int) -> bool:
        """Start to read a message into ``recv``. Returns False if that cannot be."""

    def withdrawn(self, number: int) -> None:
        """The peer has taken ``number`` messages back."""


class Source(Protocol):
    """What the inbox needs of a peer: a way to answer, its credit and its state."""

    rank: int
    outbox: Outbox

    @property
    def shm_receiver(self) -> RingSource: ...

    @property
    def direct_receiver(self) -> DirectSource: ...

    window: int
    charged: int
    owed: int
    stall: int
    wants: int
    error: BaseException | None
    last: Frame | None


class Inbox:
    """Match the messages of all peers with this rank's receives."""

    def __init__(
        self,
        size: int,
        is_over: Callable[[Key], bool],
        late: Callable[[Key, int, bytes, int], None],
    ) -> None:
        """Create an inbox for a world of ``size`` ranks.

        ``is_over(key)``: returns whether that operation or its group has ended on this rank.
        ``late(key, source, metadata, length)``: called for a message of such a key, which is
        dropped.
        """
        self.matcher = Matcher()
        self.size = size
        self._is_over = is_over
        self._late = late
        self.tickets: dict[int, Recv] = {}
        """Receives whose message was granted, or is being read, and has not come yet."""
        self._next_ticket = 0
        self._sources: dict[int, Source] = {}
        self._watched: dict[Key, Callable[[int, bytes], None]] = {}

    def add_source(self, source: Source) -> None:
        # A process that takes a lost rank's place has used no credit for what that rank has sent.
        for arrival in self.matcher.arrived_from(source.rank):
            arrival.cost = 0
        self._sources[source.rank] = source

    # -- this rank's receives

    def post(self, recv: Recv) -> None:
        self._posted(recv, self.matcher.post(recv))

    def _posted(self, recv: Recv, arrival: Arrival | None) -> None:
        if arrival is not None:
            self._deliver(recv, arrival)
            return
        for source in self._candidates(recv.src):
            if source.error is not None:
                if recv.src != ANY_SOURCE:
                    self.matcher.withdraw(recv)
                    recv.fail(source.error)
                continue
            if source.stall:
                self._want(source, recv)
            if recv.key[0] != COLLECTIVE and not recv.done:
                source.shm_receiver.watch()
                if recv.done and recv.src == ANY_SOURCE:
                    # The source that answers moves to the end of the order in which `ANY_SOURCE`
                    # receives look, so that a busy source does not starve the others.
                    self._sources[source.rank] = self._sources.pop(source.rank)

    def take(self, key: Key, src: int, meta: bytes, into: memoryview | None) -> memoryview | None:
        """Take the first message for ``key`` if it is complete and has the metadata ``meta``.

        Copies it ``into``, if that fits, and returns its memory. Returns None if no such message
        waits, or if the message needs a posted receive.
        """
        arrival = self.matcher.first(key, src)
        if arrival is None or arrival.data is None or not arrival.complete or arrival.meta != meta:
            return None
        if into is not None:
            if len(into) != arrival.length:
                return None
            copy(into, arrival.data)
        self.matcher.remove_arrival(arrival)
        self.matcher.taken = arrival.order
        self._refund(self._sources[src], arrival.cost)
        return arrival.data

    def withdraw(self, recv: Recv) -> None:
        """Cancel a receive: its memory is not written any more, and its message goes to the next
        receive.
        """
        if recv.done or self.matcher.withdraw(recv):
            return
        if recv.arrival is not None:
            self._hand_on(recv.arrival)
            recv.arrival = None
            return
        offer = recv.offer
        if offer is not None:
            _stop_reading(recv)  # first: what a signal's handler strikes is done once more
            del self.tickets[recv.ticket]
            recv.offer = None
            offer.order = recv.turn
            self._hand_on(offer)
            return
        if recv.into is None:
            return
        # The message is arriving in the caller's memory. It moves to separate memory and waits
        # there for the next receive.
        into, length = recv.into, len(recv.into)
        arrival = Arrival(recv.key, recv.source, recv.meta, length, 0, None)
        arrival.order = recv.turn
        arrival.data = private = scratch(length)
        reader, recv.reader = recv.reader, None
        if recv.ticket:
            copy(private[: recv.got], into[: recv.got])
            standin = Recv(recv.key, recv.src, private, recv.expect, recv.check)
            standin.got, standin.ticket, standin.send_id = recv.got, recv.ticket, recv.send_id
            standin.source = recv.source
            standin.stands_for = arrival
            standin.callback = lambda: self._standin_done(standin, arrival)
            self.tickets[recv.ticket] = standin
            if reader is not None:
                standin.reader = reader
                reader.redirect(standin, private[recv.got :])
        elif reader is not None:
            reader.redirect(arrival, private)
        else:
            return
        self._hand_on(arrival)

    def take_back(self, key: Key, src: int, meta: bytes, data: memoryview, order: int) -> None:
        """Give a message that a receive has got, and no caller, to the next receive.

        ``data`` is copied. ``order``: the message's place among those that wait.
        """
        if self._is_over(key):
            return
        arrival = Arrival(key, src, meta, len(data), 0, None)
        arrival.order = order
        arrival.data = scratch(len(data))
        copy(arrival.data, data)
        arrival.complete = True
        self._hand_on(arrival)

    def _hand_on(self, arrival: Arrival) -> None:
        """Give a message whose receive was cancelled to the next receive."""
        arrival.recv = recv = self.matcher.take_recv(arrival.key, arrival.src)
        if recv is None:
            self.matcher.put_back(arrival)
        else:
            recv.turn = arrival.order
            self._deliver(recv, arrival)

    def watch(self, key: Key, unasked: Callable[[int, bytes], None]) -> None:
        """Call ``unasked(src, metadata)`` for each message for ``key`` without a posted receive, until
        `forget`."""
        self._watched[key] = unasked
        for arrival in self.matcher.waiting(key, range(self.size)):
            unasked(arrival.src, arrival.meta)

    def forget(self, key: Key) -> Arrival | None:
        """End collective ``key`` here: drop what is left of it and refuse the sends that wait for a
        grant.

        Returns the first message without a receive, or None.
        """
        self._watched.pop(key, None)
        left = self.matcher.forget_key(key, range(self.size))
        for arrival in left:
            self._drop(arrival)
        if self.tickets:
            self._void([t for t, r in self.tickets.items() if r.key == key])
        return left[0] if left else None

    def forget_group(self, group: int) -> None:
        """Drop all that waits for operations and tags of ``group``, which is closed here."""
        for arrival in self.matcher.forget_group(group):
            self._drop(arrival)
        self._void([t for t, r in self.tickets.items() if r.key[1] == group])

    def drop(self, recv: Recv) -> None:
        """Stop reading into a receive of a failed collective; the message is thrown away."""
        if recv.done:
            return
        recv.callback = None
        if self.matcher.withdraw(recv):
            return
        arrival, recv.arrival = recv.arrival, None
        if arrival is not None:
            arrival.recv = None
            self._drop(arrival)
        self._give_up(recv)

    def close(self) -> None:
        """Release the unreceived messages when this rank leaves: they may lie in memory of other
        ranks.
        """
        self.matcher.forget_all()

    def peer_lost(self, source: Source, error: BaseException) -> None:
        """Fail the receives that only ``source`` could answer. Its ``error`` is set."""
        source.shm_receiver.close(error)
        self.matcher.drop_unfinished(source.rank)
        for recv in self.matcher.posted_from(source.rank):
            if recv.src == source.rank and self.matcher.withdraw(recv):
                recv.fail(error)
        for ticket in [t for t, r in self.tickets.items() if r.source == source.rank]:
            # One failure may end an operation, which removes the operation's other tickets.
            promised = self.tickets.pop(ticket, None)
            if promised is not None:
                promised.offer = None
                _stop_reading(promised)
                promised.fail(error)

    def interrupted(self, target: Recv | Arrival | None, error: BaseException) -> None:
        """Handle the end of the stream inside a payload for ``target``."""
        recv = target.recv if isinstance(target, Arrival) else target
        if recv is not None:
            recv.reader = recv.arrival = None
            recv.fail(error)

    # -- frames from ``source``

    def eager(self, source: Source, frame: Frame, reader: Reader) -> Recv | Arrival | None:
        """Return where an eager payload goes, or None to drop it."""
        key = frame.key
        if key[0] != COLLECTIVE:
            source.shm_receiver.drain_before_stream()
        source.last = frame
        cost = frame.length + MESSAGE_COST
        source.charged += cost
        if source.charged > source.window:
            self._check_excess(source, frame.length)
        # Invariant: what is over has no posted receive.
        recv = self.matcher.take_recv(key, source.rank)
        if recv is not None:
            self._refund(source, cost)
            return _to_read(recv, source, frame, reader)
        if self._is_over(key):
            self._refund(source, cost)
            self._late(key, source.rank, frame.meta, frame.length)
            return None
        arrival = Arrival(key, source.rank, frame.meta, frame.length, cost, None)
        arrival.data = scratch(frame.length)
        self._keep(arrival)
        return arrival

    def eager_done(self, source: Source, target: Recv | Arrival | None) -> None:
        if isinstance(target, Recv):
            target.reader = None
            target.complete(source.rank)
        elif target is not None:
            target.complete = True
            if target.recv is not None:
                self._deliver(target.recv, target)

    def request(self, source: Source, frame: Frame) -> None:
        # A lost rank is granted nothing. Its replacement, which numbers its requests alike, would get the
        # answer.
        if source.error is not None:
            return
        key = frame.key
        address, meta = requested(frame.meta)
        if key[0] != COLLECTIVE:
            source.shm_receiver.drain_before_stream()
        source.last = frame
        source.charged += MESSAGE_COST
        if source.charged > source.window:
            self._check_excess(source, 0)
        if self._is_over(key):
            self._refund(source, MESSAGE_COST)
            self._late(key, source.rank, meta, frame.length)
            source.outbox.control(encode(FrameType.RELEASE, id=frame.id))
            return
        arrival = Arrival(key, source.rank, meta, frame.length, MESSAGE_COST, frame.id)
        arrival.address = address
        recv = self.matcher.take_recv(key, source.rank)
        if recv is None:
            self._keep(arrival)
        else:
            arrival.order = recv.turn
            self._deliver(recv, arrival)

    def coming(self, source: Source, frame: Frame, incoming: PartialMessage) -> bool:
        """Accept a message that is being written into the ring of ``source``.

        Returns False if no receive waits for it yet.
        """
        key = frame.key
        recv = None if self._is_over(key) else self.matcher.take_recv(key, source.rank)
        if recv is None:
            return False
        source.last = frame
        incoming.goes_to(_to_read(recv, source, frame, incoming))
        return True

    def eager_message(self, source: Source, frame: Frame, payload: EagerMessage) -> None:
        """Accept a complete message in the ring of ``source``. It takes no memory of this
        rank.
        """
        source.last = frame
        key = frame.key
        if self._is_over(key):
            payload.discard()
            self._late(key, source.rank, frame.meta, frame.length)
            return
        recv = self.matcher.take_recv(key, source.rank)
        if recv is None:
            arrival = Arrival(key, source.rank, frame.meta, frame.length, 0, None)
            arrival.eager_message = payload
            arrival.complete = True
            self.matcher.keep(arrival)
            return
        error = recv.accept(source.rank, frame.meta, frame.length)
        if error is None and recv.into is not None:
            copy(recv.into, payload.open())
        payload.discard()
        if error is None:
            recv.complete(source.rank)
        else:
            recv.fail(error)

    def empty_ring(self, src: int) -> None:
        """Copy the messages that wait in the ring of ``src``, which is about to go, into own
        memory.
        """
        for arrival in self.matcher.arrived_from(src):
            eager_message, arrival.eager_message = arrival.eager_message, None
            if eager_message is not None:
                arrival.data = scratch(len(eager_message))
                copy(arrival.data, eager_message.open())
                eager_message.discard()

    def part(self, source: Source, frame: Frame, reader: Reader) -> Recv | None:
        """Return the receive to which the next part of the stream belongs, or None if it was
        cancelled or has failed.

        Raises ProtocolError for a ticket of another rank, and for a part that comes while another
        link reads one: either could write into memory that its owner uses again.
        """
        recv = self.tickets.get(frame.id)
        if recv is not None:
            if recv.source != source.rank or recv.reader is not None:
                raise ProtocolError(f"rank {source.rank} sent a part that was not asked of it")
            recv.reader = reader
        return recv

    def part_done(self, source: Source, recv: Recv | None, length: int) -> None:
        if recv is None or recv.into is None:
            return
        recv.reader = None
        recv.got += length
        if recv.got == len(recv.into) and self.tickets.get(recv.ticket) is recv:
            del self.tickets[recv.ticket]
            recv.complete(source.rank)

    def withdrawn(self, source: Source, send_id: int, number: int) -> None:
        """Handle request ``send_id``, which the sender takes back: its receive waits on.

        ``number``: how many it has taken back, by its message ring.
        """
        arrival = self.matcher.withdraw_arrival(source.rank, send_id)
        if arrival is not None:
            self._refund(source, arrival.cost)
        for ticket, recv in self.tickets.items():
            if recv.send_id == send_id and recv.source == source.rank:
                del self.tickets[ticket]
                if recv.offer is not None:
                    recv.offer = None
                    _stop_reading(recv)
                self._take_back(recv)
                break
        source.direct_receiver.withdrawn(number)

    def _take_back(self, recv: Recv) -> None:
        """Give ``recv`` the next message: the one that it was promised will not come."""
        arrival = recv.stands_for
        if arrival is not None:  # its receive was cancelled before: take the one posted since
            if arrival.recv is None:
                self.matcher.remove_arrival(arrival)
                return
            recv, arrival.recv = arrival.recv, None
        self._posted(recv, self.matcher.repost(recv))

    def stalled(self, source: Source, frame: Frame) -> None:
        """Ask for what is posted, or posted for one key."""
        again = source.stall and frame.id and frame.key != ANY_KEY
        source.stall = frame.id
        if again:  # they count in `wants`, and the sender has forgotten them
            for recv in self.matcher.posted_for(frame.key, source.rank):
                source.outbox.control(encode(FrameType.WANT, recv.key, id=source.stall))
            return
        # Invariant: what was asked for before this comes before it, or not beyond the credit.
        source.wants = 0
        if source.stall:
            for recv in self.matcher.posted_from(source.rank):
                self._want(source, recv)

    # -- inside

    def _want(self, source: Source, recv: Recv) -> None:
        source.wants += 1
        source.outbox.control(encode(FrameType.WANT, recv.key, id=source.stall))

    def _check_excess(self, source: Source, payload: int) -> None:
        """Raise ProtocolError if a message exceeds the credit, unless it was asked for and has no
        payload.

        Invariant: the sender has seen at most the credit that was sent, and both sides count
        messages in the same order. An excess by this rank's count is therefore an excess by the
        sender's.
        """
        if payload or not source.wants:
            raise ProtocolError(
                f"rank {source.rank} sent {source.charged} bytes of messages that are not yet "
                f"received, and may send {source.window}"
            )
        source.wants -= 1

    def _candidates(self, src: int) -> list[Source]:
        if src == ANY_SOURCE:
            return list(self._sources.values())
        source = self._sources.get(src)
        return [] if source is None else [source]

    def _deliver(self, recv: Recv, arrival: Arrival) -> None:
        """Give a receive the message that waits for it."""
        source = self._sources[arrival.src]
        eager_message = arrival.eager_message
        data = arrival.data if eager_message is None else eager_message.open()
        if source.error is not None and not arrival.complete:
            recv.fail(source.error)
            return
        if data is not None and not arrival.complete:
            arrival.recv = recv
            recv.arrival = arrival
            return
        recv.arrival = None
        error = recv.accept(arrival.src, arrival.meta, arrival.length)
        if error is not None:
            self._drop(arrival)
            recv.fail(error)
            return
        self._refund(source, arrival.cost)
        if arrival.send_id is None:
            if recv.into is not None and data is not None:
                copy(recv.into, data)
            if eager_message is not None:
                eager_message.discard()
            recv.complete(arrival.src)
            return
        self._next_ticket += 1
        recv.ticket = self._next_ticket
        recv.send_id = arrival.send_id
        self.tickets[recv.ticket] = recv
        recv.offer, arrival.cost = arrival, 0
        if not (arrival.address and source.direct_receiver.begin(recv, arrival.address)):
            self.grant(source, recv)

    def grant(self, source: Source, recv: Recv) -> None:
        """Have the message sent that ``recv`` was matched with."""
        recv.offer = None
        grant = encode(FrameType.GRANT, (0, 0, recv.ticket), id=recv.send_id)
        source.outbox.control(grant)
        source.shm_receiver.watch()

    def read_directly(self, source: Source, recv: Recv) -> None:
        """Complete ``recv``, whose message was read out of the memory of ``source``."""
        del self.tickets[recv.ticket]
        recv.reader = recv.offer = None
        source.outbox.control(encode(FrameType.RELEASE, id=recv.send_id))
        recv.complete(source.rank)

    def _give_up(self, recv: Recv) -> None:
        """Stop reading into a receive, and throw its message away."""
        _stop_reading(recv)
        offer, recv.offer = recv.offer, None
        if offer is not None:
            self.tickets.pop(recv.ticket, None)
            self._drop(offer)

    def _standin_done(self, standin: Recv, arrival: Arrival) -> None:
        if standin.error is not None:
            self.interrupted(arrival, standin.error)
            return
        arrival.complete = True
        if arrival.recv is not None:
            self._deliver(arrival.recv, arrival)

    def _void(self, tickets: list[int]) -> None:
        for ticket in tickets:
            self._give_up(self.tickets.pop(ticket))

    def _keep(self, arrival: Arrival) -> None:
        self.matcher.keep(arrival)
        unasked = self._watched.get(arrival.key)
        if unasked is not None:
            unasked(arrival.src, arrival.meta)

    def _drop(self, arrival: Arrival) -> None:
        source = self._sources[arrival.src]
        self._refund(source, arrival.cost)
        if arrival.eager_message is not None:
            arrival.eager_message.discard()
        if arrival.send_id is not None:
            source.outbox.control(encode(FrameType.RELEASE, id=arrival.send_id))

    def _refund(self, source: Source, cost: int) -> None:
        # Credit returns in large pieces: the rest of the window keeps the sender going meanwhile.
        source.owed += cost
        if source.owed >= source.window // 4:
            owed, source.owed = source.owed, 0
            source.charged -= owed
            source.outbox.control(encode(FrameType.CREDIT, id=owed))


def _stop_reading(recv: Recv) -> None:
    """Throw the rest of what is being read into ``recv`` away, whose memory the caller uses again."""
    reader, recv.reader = recv.reader, None
    if reader is not None:
        reader.redirect(None, None)


def _to_read(recv: Recv, source: Source, frame: Frame, reader: Reader) -> Recv | None:
    """Return ``recv``, into which ``reader`` reads from now on, or None if the message does not fit
    it.
    """
    error = recv.accept(source.rank, frame.meta, frame.length)
    if error is not None:
        recv.fail(error)
        return None
    recv.reader = reader
    return recv
