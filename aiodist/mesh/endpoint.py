"""A rank's place in the mesh: it listens, connects on first use, sends and receives by key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from aiodist.deadline import Deadline
from aiodist.errors import DistError, DistNetworkError, PeerLostError
from aiodist.mesh.events import Events
from aiodist.mesh.inbox import Inbox
from aiodist.mesh.link import Link
from aiodist.mesh.lookout import Lookout
from aiodist.mesh.matching import Recv
from aiodist.mesh.outbox import Send
from aiodist.mesh.peer import Card, Peer
from aiodist.transport.base import Connection, Listener, Transport
from aiodist.wire.frames import MAX_META, Frame, FrameType, Key, encode
from aiodist.wire.handshake import Handshake

log = logging.getLogger("aiodist")

DEFAULT_WINDOW = 64 << 20
"""Bytes that a rank buffers, for each peer, of messages without a posted receive."""

CONNECT_SECONDS = 60.0
"""All ranks listen before any learns their addresses: who has not answered by then is gone."""

HANDSHAKE_SECONDS = 10.0
_FLUSH_SECONDS = 5.0
_SILENCE_SECONDS = 0.5
"""How long a rank that was never connected may let a receive wait before it is looked for."""

_LAST_WORDS_SECONDS = 0.3
"""How long a rank that refuses connections may still be heard before it counts as gone."""

_LOCAL_SCHEMES = ("unix",)


class Endpoint:
    """Sends and receives between this rank and all others. Belongs to one event loop.

    ``open`` first, then ``meet`` with everybody's cards. Nothing connects before the first message.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        transports: Sequence[Transport],
        events: Events,
        *,
        window: int = DEFAULT_WINDOW,
    ) -> None:
        self.rank = rank
        self.size = size
        self.window = window
        self.inbox = Inbox(size, events.is_over, events.late)
        self._events = events
        self._transports = {transport.scheme: transport for transport in transports}
        self._listeners: list[Listener] = []
        self._peers: dict[int, Peer] = {}
        self._strangers: dict[Link, asyncio.TimerHandle] = {}
        self._early: list[Connection] = []  # came before ``meet``: the faster ranks know us already
        self._key = b""
        self._leaving = False
        self._closed = False
        self._host_id = ""
        self._loop = asyncio.get_running_loop()
        self.lookout = Lookout(self._loop.call_soon)

    # -- meeting

    async def open(self) -> Card:
        """Listen on every transport; the card is for the other ranks. Raises DistNetworkError."""
        self._host_id = host_id()
        for transport in self._transports.values():
            self._listeners.append(await transport.listen(self._accept))
        self.card = Card(
            self.rank,
            socket.gethostname(),
            self._host_id,
            os.getpid(),
            tuple(listener.address for listener in self._listeners),
        )
        return self.card

    def meet(self, cards: Sequence[Card], key: bytes) -> None:
        """Learn the others' cards and the job's key (32 bytes or so, secret)."""
        self._key = key
        self.size = self.inbox.size = len(cards)
        here = [card.pid for card in cards if card.host_id == self._host_id]
        alone = len(set(here)) == len(here)  # in one process, spinning would keep the other waiting
        self.lookout.active = alone and len(here) <= _cores()
        for card in cards:
            if card.rank != self.rank:
                self._add_peer(card)
        early, self._early = self._early, []
        for connection in early:
            self._accept(connection)

    def _add_peer(self, card: Card) -> None:
        peer = Peer(card, self.window, self._loop.call_soon, self.lookout.hear)
        self._peers[card.rank] = peer
        self.inbox.add_source(peer)

    def renew(self, card: Card) -> None:
        """Another process takes the place of a rank that is lost."""
        old = self._peers.get(card.rank)
        if old is not None:
            if old.error is None:  # the others noticed its end, this rank did not
                text = f"{old.card} was replaced by process {card.pid} on {card.host}"
                self._peer_lost(old, PeerLostError(text, rank=card.rank))
            for link in old.links:
                link.connection.abort()
        self._add_peer(card)

    def give_up(self, rank: int, error: PeerLostError) -> None:
        """``rank`` was lost before this rank came."""
        self._peer_lost(self._peers[rank], error)

    def cards(self) -> list[Card]:
        """Everybody's, this rank's own too, by rank."""
        known = {rank: peer.card for rank, peer in self._peers.items()}
        known[self.rank] = self.card
        return [known[rank] for rank in sorted(known)]

    def connected(self, rank: int) -> bool:
        """Whether there is a stream to ``rank``."""
        return bool(self._peers[rank].links)

    def polls(self, ranks: Sequence[int]) -> list[Callable[[], None]]:
        """What to call to take in what ``ranks`` have sent, and send what is queued for them."""
        return [link.connection.poll for rank in set(ranks) for link in self._peers[rank].links]

    def host_of(self, rank: int) -> str:
        """A name for the host of ``rank``: equal for ranks under one kernel."""
        return self._host_id if rank == self.rank else self._peers[rank].card.host_id

    # -- messages

    def send(self, dst: int, key: Key, data: memoryview, meta: bytes) -> Send:
        """Send ``data`` (bytes, contiguous) to rank ``dst``; done when its memory is free again."""
        message = Send(key, data, meta)
        peer = self._peers[dst]
        peer.outbox.send(message)
        if peer.outbox.connection is None and peer.connecting is None and peer.error is None:
            peer.connecting = self._loop.create_task(self._connect(peer))
        return message

    def recv(self, recv: Recv) -> Recv:
        """Post a receive."""
        self.inbox.post(recv)
        if not recv.done and recv.src >= 0:
            peer = self._peers[recv.src]
            if not peer.links and peer.watch is None:
                peer.watch = self._loop.call_later(_SILENCE_SECONDS, self._look_after, peer)
        return recv

    def withdraw_send(self, dst: int, message: Send) -> bool:
        """Take a message back; False if it is on the stream already."""
        return self._peers[dst].outbox.withdraw(message)

    def announce_failure(
        self, group: int, sequence: int, error: bytes, ranks: Sequence[int]
    ) -> None:
        """Tell ``ranks`` that a collective failed here, and why."""
        frame = encode(FrameType.ABORT, (0, group, sequence), length=len(error))
        for rank in ranks:
            self._tell(rank, frame, [error])

    def call_roll(self, group: int, sequence: int, ranks: Sequence[int]) -> list[int]:
        """Ask ``ranks`` whether they have entered a collective. Returns those that may answer."""
        frame = encode(FrameType.ROLL, (0, group, sequence))
        return [rank for rank in ranks if self._tell(rank, frame)]

    def agree(self, rank: int, group: int, number: int, message: bytes) -> None:
        """Send ``rank`` a message of an agreement; nothing where it is gone."""
        frame = encode(FrameType.AGREE, (0, group, number), length=len(message))
        self._tell(rank, frame, [message])

    def lost(self, rank: int) -> bool:
        """Whether ``rank`` is gone, as far as this rank knows."""
        return rank != self.rank and self._peers[rank].error is not None

    def _tell(self, rank: int, frame: bytes, payload: Sequence[bytes] = ()) -> bool:
        """Send a frame of the protocol to ``rank``, connected or not; False if it is gone."""
        peer = self._peers[rank]
        if peer.error is not None:
            return False
        peer.outbox.control(frame, payload)
        if peer.outbox.connection is None and peer.connecting is None:
            peer.connecting = self._loop.create_task(self._connect(peer))
        return True

    # -- the end

    async def close(self) -> None:
        """Say goodbye, send what is queued (bounded), close everything. Idempotent."""
        if self._leaving:
            return
        self._leaving = True
        try:
            await self._leave()
        finally:
            for connection in self.connections():  # those that did not end in time
                connection.abort()

    async def _leave(self) -> None:
        # What was sent before a connection was up still goes out, why an operation failed above
        # all. Until then this rank can be reached: a refusal would look like a death.
        connecting = [peer.connecting for peer in self._peers.values() if peer.connecting]
        if connecting:
            await asyncio.wait(connecting, timeout=_FLUSH_SECONDS)
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)
        self._closed = True
        for listener in self._listeners:
            await listener.close()
        for link, timer in list(self._strangers.items()):
            timer.cancel()
            link.connection.abort()
        self._strangers.clear()
        for connection in self._early:
            connection.abort()
        for peer in self._peers.values():
            for handle in (peer.doubt, peer.watch):
                if handle is not None:
                    handle.cancel()
            if peer.error is None:
                peer.error = PeerLostError("this rank has left the mesh", rank=peer.rank)
                if peer.outbox.connection is not None:
                    peer.outbox.control(encode(FrameType.GOODBYE))
        connections = self.connections()
        if connections:
            closing = asyncio.gather(*(c.close() for c in connections), return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing, _FLUSH_SECONDS)

    def close_in_child(self) -> None:
        """In a forked child: give back what it inherited; the parent's streams go on."""
        self._closed = True
        for listener in self._listeners:
            listener.close_in_child()
        for connection in [*self.connections(), *(link.connection for link in self._strangers)]:
            connection.close_in_child()

    def connections(self) -> list[Connection]:
        """The open connections, to all ranks."""
        return [link.connection for peer in self._peers.values() for link in peer.links]

    # -- mesh.link.Owner

    def proven(self, link: Link, rank: int) -> Peer:
        timer = self._strangers.pop(link, None)
        if timer is not None:
            timer.cancel()
        peer = self._peers[rank]
        peer.links.append(link)
        # One stream carries all we send: the one we made ourselves, or the first that came.
        if link.dialled or peer.connecting is None:
            self._use(peer, link)
        return peer

    def abort_arrived(self, peer: Peer, frame: Frame, error: memoryview) -> None:
        self._events.collective_failed(peer.rank, frame.group, frame.channel, error)

    def agree_arrived(self, peer: Peer, frame: Frame, message: memoryview) -> None:
        self._events.agree_arrived(peer.rank, frame.group, frame.channel, bytes(message))

    def roll_called(self, peer: Peer, frame: Frame) -> None:
        entered, last = self._events.present(frame.group, frame.channel)
        meta = last.encode()[:MAX_META]
        self._tell(peer.rank, encode(FrameType.PRESENT, frame.key, id=int(entered), meta=meta))

    def roll_answered(self, peer: Peer, frame: Frame) -> None:
        last = frame.meta.decode("utf-8", "replace")
        self._events.roll_answered(peer.rank, frame.group, frame.channel, frame.id != 0, last)

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        timer = self._strangers.pop(link, None)
        if timer is not None:
            timer.cancel()
            log.warning("rank %d turned a stranger away: %s", self.rank, error)
        peer = link.peer
        if peer is None or peer.error is not None or self._closed:
            return
        if not peer.said_goodbye and not link.carries and self._has_another(peer):
            # A rank that leaves ends all its links at once, and says goodbye on the one that
            # carries its messages, which may still be on their way.
            if peer.doubt is None:
                peer.doubt = self._loop.call_later(_FLUSH_SECONDS, self._lost, peer, error)
            return
        self._lost(peer, error)

    def _look_after(self, peer: Peer) -> None:
        # Whoever waits for a rank that died before it ever connected learns it this way.
        peer.watch = None
        if not (peer.links or peer.connecting or peer.error or self._leaving):
            peer.connecting = self._loop.create_task(self._connect(peer))

    def _has_another(self, peer: Peer) -> bool:
        # Who has not yet said who it is may be this very rank: its proof, its messages and its
        # goodbye can lie behind each other in a stream that nobody has read yet.
        return bool(self._strangers) or any(link.failed is None for link in peer.links)

    def _lost(self, peer: Peer, error: BaseException | None) -> None:
        if peer.error is not None:
            return
        if peer.said_goodbye:
            text = f"{peer.card} has left: it destroyed its process group or ended"
        else:
            text = f"{peer.card} died or was cut off: {error}"
        lost = PeerLostError(text, rank=peer.rank, host=peer.card.host, pid=peer.card.pid)
        if not isinstance(error, DistError):  # whose text is all there is to say
            lost.__cause__ = _without_frames(error)
        self._peer_lost(peer, lost)

    # -- inside

    def _use(self, peer: Peer, link: Link) -> None:
        if peer.outbox.connection is None and peer.error is None and link.failed is None:
            peer.outbox.connected(link.connection, link.peer_window)

    def _peer_lost(self, peer: Peer, error: PeerLostError) -> None:
        peer.error = error = self._events.explained(error, peer.last)
        if peer.doubt is not None:
            peer.doubt.cancel()
            peer.doubt = None
        peer.outbox.fail(error)
        self.inbox.peer_lost(peer, error)
        self._events.peer_lost(peer.rank, error, departed=peer.said_goodbye)

    def _handshake(self) -> Handshake:
        return Handshake(self._key, self.rank, self.size, self.window)

    def _accept(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        if not self._key:
            self._early.append(connection)
            return
        link = Link(self, connection, self._handshake())
        error = DistNetworkError(f"{connection.peer_name} did not finish the handshake in time")
        self._strangers[link] = self._loop.call_later(HANDSHAKE_SECONDS, link.abort, error)
        link.start()

    async def _connect(self, peer: Peer) -> None:
        """Try the peer's addresses in its order of preference; nobody there means it is gone."""
        deadline = Deadline(CONNECT_SECONDS)
        reasons: list[str] = []
        try:
            for address in peer.card.addresses:
                scheme = address.partition(":")[0]
                transport = self._transports.get(scheme)
                local = scheme in _LOCAL_SCHEMES
                if transport is None or (local and peer.card.host_id != self._host_id):
                    continue
                try:
                    await self._dial(peer, transport, address, deadline)
                except DistError as error:
                    reasons.append(f"{address}: {error}")
                else:
                    return
            # It may be leaving, and have told why on a stream of its own that is on its way here.
            await asyncio.sleep(_LAST_WORDS_SECONDS)
        finally:
            peer.connecting = None
        if peer.links and peer.error is None:
            self._use(peer, peer.links[0])  # it has reached us meanwhile
        elif peer.error is None:
            tried = "; ".join(reasons) or "it offers no transport that this rank has"
            text = f"{peer.card} cannot be reached: {tried}"
            card = peer.card
            lost = PeerLostError(text, rank=card.rank, host=card.host, pid=card.pid)
            self._peer_lost(peer, lost)

    async def _dial(
        self, peer: Peer, transport: Transport, address: str, deadline: Deadline
    ) -> None:
        connection = await transport.connect(address, deadline)
        link = Link(self, connection, self._handshake())
        proven: asyncio.Future[None] = self._loop.create_future()

        def answer(error: BaseException | None) -> None:
            if proven.done():
                return
            if error is None:
                proven.set_result(None)
            else:
                proven.set_exception(error)

        link.on_proven = answer
        try:
            link.start(peer.rank)
            await asyncio.wait_for(proven, min(HANDSHAKE_SECONDS, deadline.remaining()))
        except TimeoutError as error:
            connection.abort()
            raise DistNetworkError("no answer to the handshake in time") from error
        except BaseException:
            connection.abort()
            raise


def _without_frames(error: BaseException | None) -> BaseException | None:
    """``error``, whose frames hold buffers that were being read: a group keeps it for long."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_id() -> str:
    """A name for this kernel's run: equal on all ranks of one host, also in its containers."""
    path = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return f"{socket.gethostname()}-{os.name}"
