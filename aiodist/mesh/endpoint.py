"""A rank's place in the mesh: it listens, connects on first use, sends and receives by key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from aiodist.deadline import Deadline
from aiodist.errors import DistError, PeerLostError, ProtocolError
from aiodist.mesh.closing import Doubt, Farewells
from aiodist.mesh.dialling import introduce, unreachable
from aiodist.mesh.events import Events
from aiodist.mesh.forks import close_in_children
from aiodist.mesh.harbour import Harbour
from aiodist.mesh.host import host_id
from aiodist.mesh.inbox import Inbox
from aiodist.mesh.leaving import FLUSH_SECONDS, Leaving
from aiodist.mesh.link import Link
from aiodist.mesh.liveness import Heart, Notice
from aiodist.mesh.lookout import Lookout
from aiodist.mesh.losses import ENDED, LEFT, outcast, peer_lost, without_frames
from aiodist.mesh.matching import Recv
from aiodist.mesh.outbox import Send
from aiodist.mesh.peer import Peer, PeerLink
from aiodist.mesh.rank_info import Card, reachable_at
from aiodist.mesh.words import Words
from aiodist.shared.memory import SharedMemory
from aiodist.transport.base import Connection, Listener, Transport
from aiodist.transport.strangers import HANDSHAKE_SECONDS, SPARE, Strangers
from aiodist.wire.frames import Frame, FrameType, Key, encode
from aiodist.wire.handshake import Handshake

DEFAULT_WINDOW = 64 << 20
"""Bytes that a rank buffers, for each peer, of messages without a posted receive."""

CONNECT_SECONDS = 60.0
"""All ranks listen before any learns their addresses: who has not answered by then is gone."""

_SILENCE_SECONDS = 0.2
"""How long a rank that was never connected may let a receive wait before it is looked for."""

_LAST_WORDS_SECONDS = 0.3
"""How long a rank that refuses connections may still be heard before it counts as gone."""


class Endpoint(Words):
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
        heart: Heart | None = None,
        memory: SharedMemory | None = None,
        host: str = "",
    ) -> None:
        """``heart``: what watches the other ranks while this one's loop is busy, if anything.
        ``memory``: what this rank shares with those of its host. Both are closed with the rest.
        ``host``: what ranks of one host are known by, found out where empty.
        """
        self.rank = rank
        self.size = size
        self.window = window
        self.memory = memory
        self.shares_process = False  # whether ranks of this host live in one process
        self.inbox = Inbox(size, events.is_over, events.late)
        self._events = events
        self._transports = {transport.scheme: transport for transport in transports}
        self._listeners: list[Listener] = []
        self._peers: dict[int, Peer] = {}
        self._strangers: Strangers[Link] = Strangers(f"rank {rank}", size)
        self._heart = heart
        self._farewells = Farewells()
        self._early: list[Connection] = []  # came before ``meet``: the faster ranks know us already
        self._key = b""
        self._leaving = False
        self._closed = False
        self._host_id = host or host_id()
        self._loop = asyncio.get_running_loop()
        self.lookout = Lookout(self._loop.call_soon)
        self.harbour = Harbour(memory, self.lookout)

    # -- meeting

    async def open(self) -> Card:
        """Listen on every transport; the card is for the other ranks. Raises DistNetworkError."""
        lifelines: tuple[str, ...] = ()
        if self._heart is not None:
            lifelines = await self._heart.open(self._events.activity, self._pronounced)
        for transport in self._transports.values():
            self._listeners.append(await transport.listen(self._accept))
        close_in_children(self)
        self.card = Card(
            self.rank,
            socket.gethostname(),
            self._host_id,
            os.getpid(),
            tuple(listener.address for listener in self._listeners),
            lifelines,
            "" if self.memory is None else self.memory.description,
        )
        return self.card

    def meet(self, cards: Sequence[Card], key: bytes) -> None:
        """Learn the others' cards and the job's key (32 bytes or so, secret)."""
        self._key = key
        self.size = self.inbox.size = len(cards)
        here = [card.pid for card in cards if card.host_id == self._host_id]
        self.shares_process = len(set(here)) < len(here)  # there, looking keeps the other waiting
        self.lookout.meet([] if self.shares_process else here)
        if self.memory is not None:
            segments = {c.rank: c.segment for c in cards if c.host_id == self._host_id}
            self.memory.meet(segments)
        for card in cards:
            if card.rank != self.rank:
                self._add_peer(card)
        early, self._early = self._early, []
        for connection in early:
            self._accept(connection)
        if self._heart is not None:
            self._heart.meet(cards, hmac.new(key, b"lifelines", hashlib.sha256).digest())

    def _add_peer(self, card: Card) -> None:
        peer = Peer(card, self.window, self.inbox, self.harbour)
        self._peers[card.rank] = peer
        self.inbox.add_source(peer)

    def renew(self, card: Card) -> None:
        """Another process takes the place of a rank that is lost."""
        old = self._peers.get(card.rank)
        if old is not None:
            if old.error is None:  # the others noticed its end, this rank did not
                why = f"was replaced by process {card.pid} on {card.host}"
                self._peer_lost(
                    old, peer_lost(old.card, why, last=self._heard_of(old), departure="died")
                )
            for link in old.links:
                link.connection.abort()
        if self.memory is not None:
            self.memory.forget(card.rank)
        self._add_peer(card)
        if self._heart is not None:
            self._heart.renew(card)

    def give_up(self, rank: int, error: PeerLostError) -> None:
        """``rank`` was lost before this rank came."""
        self._peer_lost(self._peers[rank], error)
        if self._heart is not None:
            self._heart.dismiss(rank)

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
        return [poll for rank in set(ranks) for poll in self._peers[rank].polls()]

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

    def peer(self, rank: int) -> Peer:
        """What goes to ``rank`` and comes from it."""
        return self._peers[rank]

    def withdraw_send(self, dst: int, message: Send) -> bool:
        """Take a message back; False if it is on the stream already."""
        return self._peers[dst].outbox.withdraw(message)

    def reach(self, rank: int) -> None:
        """Connect to ``rank``, which is how one learns of its end, before there is a message."""
        peer = self._peers[rank]
        if not (peer.links or peer.connecting or peer.error or self._leaving):
            peer.connecting = self._loop.create_task(self._connect(peer))

    def error_of(self, rank: int) -> BaseException | None:
        """Why ``rank`` is gone, None while it is there."""
        return self._peers[rank].error

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

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what is queued for ``seconds`` at most, say goodbye, close everything. Idempotent.

        Beyond that it takes two seconds (twice LAST_SECONDS) where a rank is silent.
        """
        if self._leaving:
            return
        self._leaving = True
        if self.memory is not None:
            self.memory.leave()
        try:
            await self._leave(Leaving(seconds))
        finally:
            for connection in self.connections():  # those that did not end in time
                connection.abort()
            self._farewells.cut_short()
            if self._heart is not None:
                await self._heart.close()
            self.inbox.close()
            self.harbour.close()

    async def _leave(self, leaving: Leaving) -> None:
        # What was sent before a connection was up still goes out, why an operation failed above
        # all. Until then this rank can be reached: a refusal would look like a death.
        await leaving.finish([p.connecting for p in self._peers.values() if p.connecting])
        await self.harbour.clear(leaving.remaining())
        self._closed = True
        for listener in self._listeners:
            await listener.close()
        self._strangers.close(lambda link: link.connection.abort())
        for connection in self._early:
            connection.abort()
        for peer in self._peers.values():
            for handle in (peer.doubt, peer.watch):
                if handle is not None:
                    handle.cancel()
            if peer.error is None:
                peer.error = peer_lost(peer.card, "this rank has left the mesh")
                if peer.outbox.connection is not None:
                    peer.outbox.control(encode(FrameType.GOODBYE))
        closing = [connection.close() for connection in self.connections()]
        await leaving.take(closing if self._heart is None else [*closing, self._heart.close()])

    def abandon(self) -> None:
        """The loop has ended: close without it. To the other ranks, this one has died."""
        if self._heart is not None:
            self._heart.stop()
            self._heart = None
        self.close_in_child()

    def close_in_child(self) -> None:
        """In a forked child: give back what it inherited; the parent's streams go on."""
        if self._closed:
            return
        self._closed = True
        if self._heart is not None:
            self._heart.close_in_child()
        for listener in self._listeners:
            listener.close_in_child()
        for connection in [*self.connections(), *(link.connection for link in self._strangers)]:
            connection.close_in_child()
        self.inbox.close()
        self.harbour.close()

    def connections(self) -> list[Connection]:
        """The open connections, to all ranks."""
        return [link.connection for peer in self._peers.values() for link in peer.links]

    # -- mesh.link.Owner

    def proven(self, link: Link, rank: int) -> Peer:
        self._strangers.proven(link)
        peer = self._peers[rank]
        peer.links.append(link)
        if peer.card.host_id != self._host_id:
            link.connection.leaves_host()
        # One stream carries all we send: the one we made ourselves, or the first that came.
        if link.dialled or peer.connecting is None:
            self._use(peer, link)
        return peer

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        self._strangers.turned_away(link, error)
        peer = link.peer
        if peer is None or peer.error is not None or self._closed:
            return
        certain = peer.said_goodbye or link.carries or isinstance(error, ProtocolError)
        if not certain and self._has_another(peer):
            # Who leaves ends all links at once, and says goodbye on the one that carries.
            if peer.doubt is None:
                peer.doubt = Doubt(lambda: peer.bytes_heard, partial(self._lost, peer, error))
            return
        self._lost(peer, error)

    def _look_after(self, peer: Peer) -> None:
        # Whoever waits for a rank that died before it ever connected learns it this way.
        peer.watch = None
        self.reach(peer.rank)

    def _has_another(self, peer: Peer) -> bool:
        # Who has not yet said who it is may be this very rank, its goodbye in the same stream.
        return bool(self._strangers) or any(link.failed is None for link in peer.links)

    def _lost(self, peer: Peer, error: BaseException | None) -> None:
        if peer.error is not None:
            return
        left, heard = peer.said_goodbye, self._heard_of(peer)
        why = LEFT if left else f"{ENDED}: {error}"
        lost = peer_lost(peer.card, why, last=heard, departure="left" if left else "died")
        if not isinstance(error, DistError):  # whose text is all there is to say
            lost.__cause__ = without_frames(error)
        self._peer_lost(peer, lost)
        if not peer.said_goodbye:
            # It may live, and learns from this that it is given up.
            self._farewells.hang_up(*(link.connection for link in peer.links))

    def _heard_of(self, peer: Peer) -> str:
        return "" if self._heart is None else self._heart.heard_of(peer.rank)

    # -- verdicts of the hearts

    def _pronounced(self, notice: Notice) -> None:
        """The ranks' hearts agree that a rank is lost, perhaps this one."""
        if self._closed:
            return
        if notice.rank == self.rank:
            self._given_up(notice)
            return
        peer = self._peers.get(notice.rank)
        if peer is None or peer.error is not None or peer.card.mark != notice.mark:
            return
        why = f"is lost: {notice.reason}"
        lost = peer_lost(peer.card, why, notice.noticed_by, notice.last, "died")
        # Should it come back, it shall read this and not wonder why its streams have ended.
        peer.outbox.control(encode(FrameType.OUTCAST, meta=notice.encode()))
        self._peer_lost(peer, lost)
        if peer.connecting is not None:
            peer.connecting.cancel()
        self._farewells.hang_up(*(link.connection for link in peer.links))

    def cast_out(self, peer: Peer, frame: Frame) -> None:
        self._given_up(Notice.decode(frame.meta))

    def _given_up(self, notice: Notice) -> None:
        """This rank counts as lost: it was stopped, or cut off, for longer than the timeout."""
        lost = outcast(self.card, notice.reason, notice.noticed_by, notice.last)
        living = [peer for peer in self._peers.values() if peer.error is None]
        for peer in living:  # all of them first: none is to be told anything
            peer.error = lost
        for peer in living:
            self._peer_lost(peer, lost)

    # -- inside

    def _use(self, peer: Peer, link: PeerLink) -> None:
        if peer.outbox.connection is None and peer.error is None and link.failed is None:
            peer.carry(link)

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
            if len(self._early) > SPARE + 2 * self.size:
                self._early.pop(0).abort()
            return
        link = Link(self, connection, self._handshake())
        self._strangers.admit(link, connection.peer_name)
        link.start()

    async def _connect(self, peer: Peer) -> None:
        """Try the peer's addresses in its order of preference; nobody there means it is gone."""
        deadline = Deadline(CONNECT_SECONDS)
        tried: dict[str, DistError] = {}
        try:
            for address in peer.card.addresses:
                if not reachable_at(address, peer.card, self.card, self._transports):
                    continue
                transport = self._transports[address.partition(":")[0]]
                try:
                    await self._dial(peer, transport, address, deadline)
                except DistError as error:
                    tried[address] = error
                else:
                    return
            # It may be leaving, and have told why on a stream of its own that is on its way here.
            await asyncio.sleep(_LAST_WORDS_SECONDS)
        finally:
            peer.connecting = None
        if peer.links and peer.error is None:
            self._use(peer, peer.links[0])  # it has reached us meanwhile
        elif peer.error is None:
            memory = self.memory
            peer.said_goodbye = left = memory is not None and memory.has_left(peer.rank)
            text, heard = unreachable(tried, left=left), self._heard_of(peer)
            self._peer_lost(peer, peer_lost(peer.card, text, -1, heard, "left" if left else ""))

    async def _dial(
        self, peer: Peer, transport: Transport, address: str, deadline: Deadline
    ) -> None:
        connection = await transport.connect(address, deadline)
        link = Link(self, connection, self._handshake())
        await introduce(link, peer.rank, min(HANDSHAKE_SECONDS, deadline.remaining()))
