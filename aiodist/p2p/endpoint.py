"""One rank's endpoint: it listens, connects on first use, and sends and receives by key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from functools import partial

from aiodist.errors import DistError, DistNetworkError, PeerLostError, ProtocolError
from aiodist.links.closing_streams import ClosingStreams, LossSuspicion
from aiodist.links.dialing import unreachable
from aiodist.links.forks import close_in_children
from aiodist.links.host import have_cores, host_id, own_cores, spare_cores
from aiodist.links.losses import ENDED, LEFT, outcast, peer_lost, without_frames
from aiodist.links.rank_info import RankInfo
from aiodist.liveness import HeartbeatThread, LossNotice
from aiodist.p2p.connector import Connector
from aiodist.p2p.departure import FLUSH_SECONDS, Departure
from aiodist.p2p.endpoint_events import EndpointEvents, StatusAnswer
from aiodist.p2p.inbox import Inbox
from aiodist.p2p.link import Link
from aiodist.p2p.matching import Recv
from aiodist.p2p.outbox import Send
from aiodist.p2p.peer import Peer, PeerLink
from aiodist.p2p.shm_progress import ShmProgress
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.procfs import host_name
from aiodist.shm.shared_memory import SharedMemory
from aiodist.transport.base_transport import Connection, Listener, Transport
from aiodist.transport.pending_handshakes import PendingHandshakes
from aiodist.wire.frames import MAX_META, Frame, FrameType, Key, encode
from aiodist.wire.handshake import Handshake

DEFAULT_WINDOW = 64 << 20
"""Bytes that a rank buffers, for each peer, of messages without a posted receive."""

_SILENCE_SECONDS = 0.2
"""Seconds that a receive may wait for a rank without a connection, until this rank connects to it."""

_LAST_WORDS_SECONDS = 0.2
"""Seconds to wait for a goodbye on another stream when a rank refuses connections."""

_TEXT_END = "\0"
_TEXT_CHARS = MAX_META // 8 - 1
"""Characters of each of two texts, of up to 4 bytes each."""


class Endpoint:
    """Send and receive between this rank and all others. An endpoint belongs to one event loop.

    Call ``open`` first, then ``meet`` with the rank infos of all ranks. The first message to a peer
    opens the connection.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        transports: Sequence[Transport],
        events: EndpointEvents,
        *,
        window: int = DEFAULT_WINDOW,
        heartbeat: HeartbeatThread | None = None,
        memory: SharedMemory | None = None,
        host: str = "",
    ) -> None:
        """Create an endpoint that is not yet open.

        ``heartbeat``: watches the other ranks while this rank's loop is busy; None for no
        heartbeats. ``memory``: the shared memory of this host's ranks. `close` closes both.
        ``host``: the name that all ranks of this host share; determined here if empty.
        """
        self.rank = rank
        self.size = size
        self.window = window
        self.memory = memory
        self.shares_process = False  # whether ranks of this host live in one process
        self.inbox = Inbox(size, events.is_over, events.late_message)
        self.events = events
        self._transports = {transport.scheme: transport for transport in transports}
        self._listeners: list[Listener] = []
        self._peers: dict[int, Peer] = {}
        self._pending: PendingHandshakes[Link] = PendingHandshakes(f"rank {rank}", size)
        self._heartbeat = heartbeat
        self._closing_streams = ClosingStreams()
        self._early: list[Connection] = []  # accepted before ``meet``, from ranks that met sooner
        self.key = b""
        """The secret by which the ranks of the job know each other; empty before `meet`."""
        self._connector = Connector(
            transports, self._new_link, self._has_left, watched=heartbeat is not None
        )
        self._departure = False
        self.given_up: PeerLostError | None = None
        """Why the other ranks count this one as lost, once it has learnt that they do."""
        self._closed = False
        self._host_id = host or host_id()
        self._loop = asyncio.get_running_loop()
        self.spin_policy = SpinPolicy(self._loop.call_soon)
        self.shm_progress = ShmProgress(memory, self.spin_policy)

    # -- rendezvous

    async def open(self) -> RankInfo:
        """Listen on every transport; return this rank's info for the others. Raises DistNetworkError."""
        close_in_children(self)
        heartbeat_addresses: tuple[str, ...] = ()
        if self._heartbeat is not None:
            heartbeat_addresses = await self._heartbeat.open(
                self.events.activity, self._on_loss_notice, self._departed
            )
        for transport in self._transports.values():
            self._listeners.append(await transport.listen(self._accept))
        self.rank_info = RankInfo(
            self.rank,
            host_name(),
            self._host_id,
            os.getpid(),
            tuple(listener.address for listener in self._listeners),
            heartbeat_addresses,
            "" if self.memory is None else self.memory.description,
            own_cores(),
        )
        return self.rank_info

    def meet(self, rank_infos: Sequence[RankInfo], key: bytes) -> None:
        """Set the rank infos of all ranks and the job's key (about 32 bytes, secret)."""
        self.key = key
        self.size = self.inbox.size = len(rank_infos)
        self._pending.expect(self.size)
        here = [rank_info for rank_info in rank_infos if rank_info.host_id == self._host_id]
        pids = [rank_info.pid for rank_info in here]
        self.shares_process = len(set(pids)) < len(pids)  # where spinning blocks the other rank
        cores = [rank_info.cores for rank_info in here]
        self.spin_policy.meet([] if self.shares_process else pids, have_cores=have_cores(cores))
        if self.memory is not None:
            self.memory.meet({rank_info.rank: rank_info.segment for rank_info in here})
            self.shm_progress.helpers.limit = spare_cores(cores, self.rank_info.cores)
            self._loop.add_reader(self.memory.doorbell.fd, self._on_doorbell)
        for rank_info in rank_infos:
            if rank_info.rank != self.rank:
                self._add_peer(rank_info)
        early, self._early = self._early, []
        for connection in early:
            self._accept(connection)
        if self._heartbeat is not None:
            self._heartbeat.meet(rank_infos, hmac.new(key, b"lifelines", hashlib.sha256).digest())

    def _add_peer(self, rank_info: RankInfo) -> None:
        peer = Peer(rank_info, self.window, self.inbox, self.shm_progress)
        self._peers[rank_info.rank] = peer
        self.inbox.add_source(peer)

    def renew(self, rank_info: RankInfo) -> None:
        """Replace a lost rank by a new process."""
        old = self._peers.get(rank_info.rank)
        if old is not None:
            if old.error is None:  # only the other ranks noticed its end
                why = f"was replaced by process {rank_info.pid} on {rank_info.host}"
                self._peer_lost(
                    old,
                    peer_lost(old.rank_info, why, last=self._last_beat_of(old), departure="died"),
                )
            for link in old.links:
                link.connection.abort()
            if old.connecting is not None:
                old.connecting.cancel()
        for waiting in self._pending:
            if waiting.claimed_rank == rank_info.rank:  # it dials again, and is answered then
                waiting.abort(DistNetworkError(f"{rank_info} takes the place of a lost rank"))
        if self.memory is not None:
            self.memory.forget(rank_info.rank)
        self._add_peer(rank_info)
        if self._heartbeat is not None:
            self._heartbeat.renew(rank_info)

    def give_up(self, rank: int, error: PeerLostError) -> None:
        """Record that ``rank`` was lost before this rank joined."""
        self._peer_lost(self._peers[rank], error)
        if self._heartbeat is not None:
            self._heartbeat.stop_watching(rank)

    def rank_infos(self) -> list[RankInfo]:
        """Return the rank infos of all ranks, by rank, this rank included."""
        known = {rank: peer.rank_info for rank, peer in self._peers.items()}
        known[self.rank] = self.rank_info
        return [known[rank] for rank in sorted(known)]

    def connected(self, rank: int) -> bool:
        """Return whether a stream to ``rank`` is open."""
        return bool(self._peers[rank].links)

    def polls(self, ranks: Sequence[int]) -> list[Callable[[], None]]:
        """Return functions that read what ``ranks`` have sent and write what is queued for them."""
        return [poll for rank in set(ranks) for poll in self._peers[rank].polls()]

    def host_of(self, rank: int) -> str:
        """Return a name for the host of ``rank``: ranks under one kernel have equal names."""
        return self._host_id if rank == self.rank else self._peers[rank].rank_info.host_id

    def lost_processes(self) -> list[int]:
        """Return the processes of this host whose ranks have left or were lost."""
        return [
            peer.rank_info.pid
            for peer in self._peers.values()
            if peer.error is not None
            and peer.rank_info.host_id == self._host_id
            and peer.rank_info.pid != self.rank_info.pid
        ]

    # -- messages

    def send(self, dst: int, key: Key, data: memoryview, meta: bytes) -> Send:
        """Send ``data`` (bytes, contiguous) to rank ``dst``. The send completes when its memory is
        free again.
        """
        message = Send(key, data, meta)
        peer = self._peers[dst]
        peer.outbox.send(message)
        if peer.outbox.connection is None and peer.connecting is None and peer.error is None:
            peer.connecting = self._loop.create_task(self._connect(peer))
        return message

    def recv(self, recv: Recv) -> Recv:
        """Post a receive."""
        self.inbox.post(recv)
        if not recv.done:
            if recv.src >= 0:
                self._watch(self._peers[recv.src])
            elif not self.liveness_timeout or self.shares_process:
                # No heartbeat thread tells this rank that others leave.
                for peer in self._peers.values():
                    self._watch(peer)
        return recv

    def peer(self, rank: int) -> Peer:
        """Return the state of the exchange with ``rank``."""
        return self._peers[rank]

    def withdraw_send(self, dst: int, message: Send) -> bool:
        """Take a message back. Returns False if it is on the stream already."""
        return self._peers[dst].outbox.withdraw(message)

    def reach(self, rank: int) -> None:
        """Connect to ``rank`` before there is a message: only a connection reports the end of its
        process.
        """
        peer = self._peers[rank]
        if not (peer.links or peer.connecting or peer.error or self._departure):
            peer.connecting = self._loop.create_task(self._connect(peer))

    @property
    def liveness_timeout(self) -> float:
        """Seconds of silence after which a rank is lost; 0 where no rank watches another."""
        return 0.0 if self._heartbeat is None else self._heartbeat.timeout

    def error_of(self, rank: int) -> BaseException | None:
        """Return why ``rank`` is lost, or None while it is reachable."""
        return self._peers[rank].error

    def lost(self, rank: int) -> bool:
        """Return whether ``rank`` is lost, as far as this rank knows."""
        return rank != self.rank and self._peers[rank].error is not None

    def _send(self, rank: int, frame: bytes, payload: Sequence[bytes] = ()) -> bool:
        """Send a control frame to ``rank``, connected or not. Returns False if the rank is lost."""
        peer = self._peers[rank]
        if peer.error is not None:
            return False
        peer.outbox.control(frame, payload)
        if peer.outbox.connection is None and peer.connecting is None:
            peer.connecting = self._loop.create_task(self._connect(peer))
        return True

    # -- control messages to other ranks

    def announce_failure(
        self, group: int, sequence: int, error: bytes, ranks: Sequence[int]
    ) -> None:
        """Tell ``ranks`` that a collective failed here, and why."""
        frame = encode(FrameType.ABORT, (0, group, sequence), length=len(error))
        for rank in ranks:
            self._send(rank, frame, [error])

    def query_status(self, group: int, sequence: int, ranks: Sequence[int]) -> list[int]:
        """Ask ``ranks`` whether they have entered a collective, and what they do.

        A ``sequence`` below 0 asks about no collective. Returns the ranks that may answer.
        """
        frame = encode(FrameType.STATUS_QUERY, (0, group, sequence))
        return [rank for rank in ranks if self._send(rank, frame)]

    def agree(self, rank: int, group: int, number: int, message: bytes) -> None:
        """Send ``rank`` a message of an agreement. A lost rank gets none."""
        frame = encode(FrameType.AGREE, (0, group, number), length=len(message))
        self._send(rank, frame, [message])

    def wake(self, rank: int, group: int) -> None:
        """Wake ``rank``, which sleeps over the memory of ``group``, behind all messages before this."""
        self._send(rank, encode(FrameType.WAKE, (0, group, 0)))

    def send_fingerprint(self, rank: int, group: int, sequence: int, fingerprint: bytes) -> None:
        """Tell ``rank`` which collective this rank waits in for a message of it."""
        self._send(rank, encode(FrameType.FINGERPRINT, (0, group, sequence), meta=fingerprint))

    def _on_doorbell(self) -> None:
        if self.memory is not None:
            for group in self.memory.doorbell.take():
                self.events.woken(group)

    # -- control messages from other ranks

    def status_queried(self, peer: Peer, frame: Frame) -> None:
        entered, *texts = self.events.present(frame.group, frame.channel)
        meta = _TEXT_END.join(text[:_TEXT_CHARS] for text in texts).encode()
        self._send(peer.rank, encode(FrameType.PRESENT, frame.key, id=int(entered), meta=meta))

    def status_answered(self, peer: Peer, frame: Frame) -> None:
        last, _, now = frame.meta.decode("utf-8", "replace").partition(_TEXT_END)
        answer = StatusAnswer(frame.id != 0, last, now)
        self.events.status_answered(peer.rank, frame.group, frame.channel, answer)

    # -- the end

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Flush the queues for at most ``seconds``, say goodbye and close every connection.
        Idempotent.

        A silent rank lengthens this by at most two seconds (twice LAST_SECONDS).
        """
        if self._departure:
            return
        self._departure = True
        if self.memory is not None:
            self.memory.leave()
        try:
            await self._leave(Departure(seconds))
        finally:
            await self._stop_listening()  # a cancelled `_leave` may not have come so far
            for peer in self._peers.values():
                for handle in (peer.suspicion, peer.watch, peer.connecting):
                    if handle is not None:
                        handle.cancel()
            for connection in self.connections():  # those that did not end in time
                connection.abort()
            self._closing_streams.cut_short()
            self.inbox.close()
            if self.memory is not None:
                self._loop.remove_reader(self.memory.doorbell.fd)
            self.shm_progress.close()
            if self._heartbeat is not None:  # last: it takes time, and may be cancelled once more
                await self._heartbeat.close()

    async def _leave(self, leaving: Departure) -> None:
        # Messages sent before their connection was up still go out, above all the reasons of
        # failed operations. Until then this rank listens: a refusal would look like its death.
        await leaving.finish([p.connecting for p in self._peers.values() if p.connecting])
        await self._stop_listening()
        for peer in self._peers.values():
            if peer.error is None:
                peer.error = peer_lost(peer.rank_info, "this rank has left")
                if peer.outbox.connection is not None:
                    peer.outbox.control(encode(FrameType.GOODBYE))
        closing = [connection.close() for connection in self.connections()]
        await leaving.take(
            closing if self._heartbeat is None else [*closing, self._heartbeat.close()]
        )

    async def _stop_listening(self) -> None:
        """Take no more connections, and drop those that are being made. Idempotent."""
        self._closed = True
        for listener in self._listeners:
            await listener.close()
        self._pending.close(lambda link: link.connection.abort())
        for connection in self._early:
            connection.abort()

    def abandon(self) -> None:
        """Close without the loop, which has ended. To the other ranks, this one has died."""
        for peer in self._peers.values():
            peer.abandon()
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self.close_in_child()

    def close_in_child(self) -> None:
        """Release in a forked child what it inherited; the parent's streams stay open."""
        if self._closed:
            return
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.close_in_child()
        for listener in self._listeners:
            listener.close_in_child()
        for transport in self._transports.values():
            transport.close_in_child()
        self._connector.close_in_child()
        pending = (link.connection for link in self._pending)
        for connection in (*self.connections(), *pending, *self._early):
            connection.close_in_child()
        self.inbox.close()
        self.shm_progress.close()

    def connections(self) -> list[Connection]:
        """Return the open connections to all ranks."""
        return [link.connection for peer in self._peers.values() for link in peer.links]

    # -- p2p.link.Owner

    def proven(self, link: Link, rank: int) -> Peer:
        self._pending.proven(link)
        peer = self._peers[rank]
        peer.links.append(link)
        if peer.error is not None:  # it was lost since `greeted`, and may be alive: as in `_lost`
            self._closing_streams.hang_up(link.connection)
        if peer.rank_info.host_id != self._host_id:
            link.connection.leaves_host()
        # One link carries all that this rank sends: the one it dialled, or the first that arrived.
        if link.dialled or peer.connecting is None:
            self._use(peer, link)
        return peer

    def greeted(self, link: Link) -> bool:
        """Return whether to answer ``link``, whose first words were right.

        A rank that counts as lost gets no answer. It may be a newcomer in that rank's place, which
        this rank takes in later: `renew`. It dials again meanwhile.
        """
        self._pending.greeted(link, link.connection.peer_name)
        return self._peers[link.claimed_rank].error is None

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        self._pending.rejected(link, error)
        peer = link.peer
        if peer is None or peer.error is not None or self._closed:
            return
        certain = peer.said_goodbye or link.carries or isinstance(error, ProtocolError)
        if not certain:
            # A leaving peer ends all its links at once and says goodbye only on the one that
            # carries its messages. The goodbye may still be on its way: on that link, of which this
            # rank may know nothing yet, or by the heartbeat threads.
            if peer.suspicion is None:
                peer.suspicion = LossSuspicion(
                    lambda: peer.bytes_heard, partial(self._lost, peer, error)
                )
        elif peer.suspicion is not None and not isinstance(error, ProtocolError):
            # The stream that ended first says why: the peer may have ended this one for that.
            peer.suspicion.on_cut_off()
        else:
            self._lost(peer, error)

    def _watch(self, peer: Peer) -> None:
        if not peer.links and peer.watch is None:
            peer.watch = self._loop.call_later(_SILENCE_SECONDS, self._probe, peer)

    def _probe(self, peer: Peer) -> None:
        # A rank that died before it connected is noticed only by connecting to it.
        peer.watch = None
        self.reach(peer.rank)

    def _lost(self, peer: Peer, error: BaseException | None) -> None:
        if peer.error is not None:
            return
        # A rank that is about to leave may end a stream that has just come up without a goodbye.
        peer.said_goodbye = left = peer.said_goodbye or self._has_left(peer)
        heard = self._last_beat_of(peer)
        why = LEFT if left else f"{ENDED}: {error}"
        lost = peer_lost(peer.rank_info, why, last=heard, departure="left" if left else "died")
        if not isinstance(error, DistError):  # the text of a DistError needs no cause
            lost.__cause__ = without_frames(error)
        self._peer_lost(peer, lost)
        if not peer.said_goodbye:
            # The peer may be alive: the end of its streams tells it that it counts as lost.
            self._closing_streams.hang_up(*(link.connection for link in peer.links))

    def _has_left(self, peer: Peer) -> bool:
        return peer.has_departed or (self.memory is not None and self.memory.has_left(peer.rank))

    def _last_beat_of(self, peer: Peer) -> str:
        return "" if self._heartbeat is None else self._heartbeat.last_heartbeat_of(peer.rank)

    # -- notices of the heartbeat threads

    def _on_loss_notice(self, notice: LossNotice) -> None:
        """Handle the notice of the heartbeat threads that a rank is lost, perhaps this one."""
        if self._closed:
            return
        if notice.rank == self.rank:
            self._declared_lost(notice)
            return
        peer = self._peers.get(notice.rank)
        if peer is None or peer.error is not None or peer.rank_info.mark != notice.mark:
            return
        why = f"is lost: {notice.reason}"
        lost = peer_lost(peer.rank_info, why, notice.noticed_by, notice.last, "died")
        # If the rank comes back, this frame tells it why its streams have ended.
        peer.outbox.control(encode(FrameType.OUTCAST, meta=notice.encode()))
        self._peer_lost(peer, lost)
        if peer.connecting is not None:
            peer.connecting.cancel()
        self._closing_streams.hang_up(*(link.connection for link in peer.links))

    def _departed(self, rank: int, mark: bytes) -> None:
        """Note the goodbye of ``rank``, which the heartbeat threads have heard.

        If there is a stream from it, that brings its last messages and its end.
        """
        peer = self._peers.get(rank)
        if peer is not None and peer.rank_info.mark == mark:
            peer.has_departed = True
            self._loop.call_later(_LAST_WORDS_SECONDS, self._end_without_link, peer)

    def _end_without_link(self, peer: Peer) -> None:
        if (
            self._departure
            or self._closed
            or peer.error is not None
            or peer.links
            or peer.connecting
        ):
            return
        if any(link.claimed_rank in (-1, peer.rank) for link in self._pending):
            # Perhaps its own, with its last messages.
            self._loop.call_later(_LAST_WORDS_SECONDS, self._end_without_link, peer)
            return
        peer.said_goodbye = True
        self._peer_lost(
            peer, peer_lost(peer.rank_info, LEFT, last=self._last_beat_of(peer), departure="left")
        )

    def loss_notice_arrived(self, frame: Frame) -> None:
        self._declared_lost(LossNotice.decode(frame.meta))

    def _declared_lost(self, notice: LossNotice) -> None:
        """Fail all peers: this rank was stopped or cut off for longer than the timeout and counts
        as lost.
        """
        lost = outcast(self.rank_info, notice.reason, notice.noticed_by, notice.last)
        self.given_up = self.given_up or lost
        living = [peer for peer in self._peers.values() if peer.error is None]
        for peer in living:  # mark all before failing any, so that no frame goes to them
            peer.error = lost
        for peer in living:
            self._peer_lost(peer, lost)

    # -- inside

    def _use(self, peer: Peer, link: PeerLink) -> None:
        if peer.outbox.connection is None and peer.error is None and link.failed is None:
            peer.carry(link)

    def _peer_lost(self, peer: Peer, error: PeerLostError) -> None:
        peer.error = error = self.events.explained(error, peer.last)
        if peer.suspicion is not None:
            peer.suspicion.cancel()
            peer.suspicion = None
        peer.outbox.fail(error)
        self.inbox.peer_lost(peer, error)
        self.events.peer_lost(peer.rank, error, departed=peer.said_goodbye)

    def _new_link(self, connection: Connection) -> Link:
        return Link(self, connection, Handshake(self.key, self.rank, self.size, self.window))

    def _accept(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        if not self.key:
            self._early.append(connection)
            if len(self._early) > self._pending.limit:
                self._early.pop(0).abort()
            return
        link = self._new_link(connection)
        self._pending.admit(link, connection.peer_name)
        link.start()

    async def _connect(self, peer: Peer) -> None:
        """Connect to the peer. If it answers at no address, it is lost."""
        try:
            tried = await self._connector.connect(peer, self.rank_info)
            if tried is not None:
                # The peer may be leaving, with its goodbye on its way here on another stream.
                await asyncio.sleep(_LAST_WORDS_SECONDS)
        finally:
            peer.connecting = None
        if peer.error is not None:
            return
        if peer.links:
            self._use(peer, peer.links[0])  # the peer may have connected to this rank meanwhile
        elif tried is not None:
            peer.said_goodbye = left = self._has_left(peer)
            text, heard = unreachable(tried, left=left), self._last_beat_of(peer)
            self._peer_lost(
                peer, peer_lost(peer.rank_info, text, -1, heard, "left" if left else "")
            )
