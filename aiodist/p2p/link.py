"""A connection between two ranks: first the handshake, then frames, each passed to its handler."""

from __future__ import annotations

from typing import Protocol

from aiodist.copying import copy
from aiodist.errors import DistNetworkError, ProtocolError
from aiodist.links.rank_connection import RankConnection
from aiodist.p2p.endpoint_events import EndpointEvents
from aiodist.p2p.inbox import Inbox
from aiodist.p2p.matching import Arrival, Recv
from aiodist.p2p.outbox import EAGER_BYTES
from aiodist.p2p.peer import Peer
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.tensors import scratch
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import MAX_PAYLOAD, Frame, FrameType
from aiodist.wire.handshake import Handshake

MAX_ABORT_BYTES = 1 << 20
"""Limit on the error of an ABORT frame, which is text and numbers. A longer one breaks the
protocol."""

_TEXTS = (FrameType.ABORT, FrameType.AGREE)


class Owner(Protocol):
    """What a link needs of the endpoint that it belongs to."""

    inbox: Inbox
    spin_policy: SpinPolicy
    events: EndpointEvents

    def greeted(self, link: Link) -> bool: ...

    def proven(self, link: Link, rank: int) -> Peer: ...

    def status_queried(self, peer: Peer, frame: Frame) -> None: ...

    def status_answered(self, peer: Peer, frame: Frame) -> None: ...

    def loss_notice_arrived(self, frame: Frame) -> None: ...

    def link_lost(self, link: Link, error: BaseException | None) -> None: ...


class Link(RankConnection):
    """One connection. The handshake sets ``peer``, once it has proven the other side's rank."""

    def __init__(self, owner: Owner, connection: Connection, handshake: Handshake) -> None:
        super().__init__(connection, handshake)
        self.peer: Peer | None = None
        self.peer_window = 0  # bytes that the peer buffers of what this rank sends
        self.carries = False  # the peer sends on it
        self.failed: BaseException | None = None
        self._owner = owner
        self._target: Recv | Arrival | None = None
        self._abort: memoryview | None = None

    @property
    def claimed_rank(self) -> int:
        """Return the rank that the other side says it is, -1 before it has spoken. Not proven."""
        return self._handshake.peer_rank

    @property
    def bytes_heard(self) -> int:
        """Return how many bytes the connection has read."""
        return self._decoder.bytes_heard

    # -- wire.FrameHandler

    def frame(self, frame: Frame, payload: memoryview) -> None:
        peer = self.peer
        if peer is None:
            self._introduce(frame)
            return
        self.carries = True
        self._owner.spin_policy.note_progress()
        kind = frame.type
        if kind == FrameType.EAGER:
            inbox = self._owner.inbox
            target = inbox.eager(peer, frame, self)
            place = _place_of(target)
            if place is not None:
                copy(place, payload)
            inbox.eager_done(peer, target)
        elif len(payload):
            place = self.payload(frame)
            if place is not None:
                copy(place, payload)
            self.payload_done(frame)
        elif kind == FrameType.REQUEST:
            self._owner.inbox.request(peer, frame)
        elif kind == FrameType.GRANT:
            peer.outbox.granted(frame.id, frame.channel)
        elif kind == FrameType.CREDIT:
            peer.outbox.credited(frame.id)
        elif kind == FrameType.WANT:
            peer.outbox.wanted(frame.key, frame.id)
        elif kind == FrameType.STALLED:
            self._owner.inbox.stalled(peer, frame)
        elif kind == FrameType.RELEASE:
            peer.outbox.released(frame.id)
        elif kind == FrameType.WITHDRAW:
            self._owner.inbox.withdrawn(peer, frame.id, frame.channel)
        elif kind == FrameType.STATUS_QUERY:
            self._owner.status_queried(peer, frame)
        elif kind == FrameType.PRESENT:
            self._owner.status_answered(peer, frame)
        elif kind == FrameType.OUTCAST:
            self._owner.loss_notice_arrived(frame)
        elif kind == FrameType.WAKE:
            if frame.id:
                peer.shm_receiver.woken()
            else:
                self._owner.events.woken(frame.group)
        elif kind == FrameType.FINGERPRINT:
            where = peer.rank, frame.group, frame.channel
            self._owner.events.fingerprint_arrived(*where, frame.meta)
        elif kind == FrameType.GOODBYE:
            peer.said_goodbye = True
            self._owner.link_lost(self, None)
        else:
            raise ProtocolError(f"unexpected {FrameType(kind).name} frame")

    def payload(self, frame: Frame) -> memoryview | None:
        peer = self.peer
        inbox = self._owner.inbox
        self._target = None
        self._abort = None
        if peer is None:
            raise ProtocolError("the other side sent a payload before the handshake")
        self.carries = True
        if frame.type == FrameType.EAGER:
            if frame.length > EAGER_BYTES:
                raise ProtocolError(f"an eager message of {frame.length} bytes")
            self._target = target = inbox.eager(peer, frame, self)
            return _place_of(target)
        if frame.type == FrameType.DATA:
            self._target = recv = inbox.part(peer, frame, self)
            if recv is None or recv.into is None:
                return None
            place = recv.into[recv.got : recv.got + frame.length]
            if len(place) != frame.length:
                raise ProtocolError("a part extends beyond the end of its message")
            return place
        if frame.type in _TEXTS and frame.length <= MAX_ABORT_BYTES:
            self._abort = scratch(frame.length)
            return self._abort
        raise ProtocolError(f"a {FrameType(frame.type).name} frame with {frame.length} bytes")

    def payload_done(self, frame: Frame) -> None:
        peer = self.peer
        assert peer is not None  # payload() has refused everything before the proof
        target, self._target = self._target, None
        self._owner.spin_policy.note_progress()
        if frame.type == FrameType.EAGER:
            self._owner.inbox.eager_done(peer, target)
        elif frame.type == FrameType.DATA:
            recv = target if isinstance(target, Recv) else None
            self._owner.inbox.part_done(peer, recv, frame.length)
        elif self._abort is not None:
            text, self._abort = self._abort, None
            where = peer.rank, frame.group, frame.channel
            if frame.type == FrameType.AGREE:
                self._owner.events.agree_arrived(*where, bytes(text))
            else:
                self._owner.events.collective_failed(*where, text)

    def lost(self, error: BaseException | None) -> None:
        if self.failed is not None:
            return
        peer = self.peer
        if peer is None:
            where = self.connection.peer_name
            failed: BaseException = error or DistNetworkError(
                f"{where} closed the connection during the handshake"
            )
        else:
            failed = error or DistNetworkError(f"rank {peer.rank} closed its connection")
        self.failed = failed
        target, self._target = self._target, None
        self._owner.link_lost(self, failed)
        if peer is not None and peer.error is not None:
            self._owner.inbox.interrupted(target, peer.error)
        self._answer(failed)

    # -- p2p.matching.Reader

    def redirect(self, target: Recv | Arrival | None, destination: memoryview | None) -> None:
        self._target = target
        self._decoder.redirect(destination)

    # -- links.rank_connection.RankConnection

    def _greeted(self) -> bool:
        return self._owner.greeted(self)

    def _proven(self) -> None:
        self._decoder.max_payload = MAX_PAYLOAD
        self.peer_window = self._handshake.peer_window
        self.peer = self._owner.proven(self, self._handshake.peer_rank)


def _place_of(target: Recv | Arrival | None) -> memoryview | None:
    if target is None:
        return None
    return target.into if isinstance(target, Recv) else target.data
