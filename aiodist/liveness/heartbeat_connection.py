"""A connection between the heartbeat threads of two ranks: a handshake, then heartbeats and news."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiodist.errors import HandshakeError, ProtocolError
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import MAX_META, Frame, FrameDecoder, FrameType, encode
from aiodist.wire.handshake import Handshake, refusal

TYPES = (FrameType.BEAT, FrameType.LOST, FrameType.LEFT, FrameType.GOODBYE)


class Owner(Protocol):
    """What a heartbeat connection needs of the failure detector that it belongs to."""

    def not_met(self, rank: int) -> None: ...

    def proven(self, line: HeartbeatConnection) -> None: ...

    def said(self, line: HeartbeatConnection, frame: Frame) -> None: ...

    def ended(self, line: HeartbeatConnection, error: BaseException | None) -> None: ...


class HeartbeatConnection:
    """One connection. ``rank`` is -1 until the handshake has proven the rank of the other side."""

    def __init__(self, owner: Owner, connection: Connection, handshake: Handshake) -> None:
        self.connection = connection
        self.rank = -1
        self.heartbeat = 0.0, ""
        """When the last heartbeat of the other side came, and the activity that it reported."""
        self.on_proven: Callable[[BaseException | None], None] | None = None
        self._owner = owner
        self._handshake = handshake
        self._over = False
        self._server_rank = -1
        self._decoder = FrameDecoder(self, max_payload=0)  # a heartbeat is a header and metadata

    def start(self, server_rank: int | None = None) -> None:
        """Begin to read. With ``server_rank``, act as the client of the handshake with that rank."""
        self.connection.start(self._decoder)
        if server_rank is not None:
            self._server_rank = server_rank
            self.tell(FrameType.HELLO, self._handshake.start(server_rank))

    def tell(self, type: FrameType, meta: bytes = b"", *, id: int = 0) -> None:
        self.connection.send([encode(type, meta=meta, id=id)])

    def abort(self, error: BaseException) -> None:
        """Close at once because of ``error``, and report it to the task that waits for the handshake."""
        self.connection.abort()
        self.lost(error)

    # -- wire.FrameHandler

    def frame(self, frame: Frame, payload: memoryview) -> None:
        if self.rank < 0:
            self._introduce(frame)
        elif frame.type in TYPES:
            self._owner.said(self, frame)
        else:
            raise ProtocolError(f"a {FrameType(frame.type).name} frame on a heartbeat connection")

    def payload(self, frame: Frame) -> memoryview | None:
        raise ProtocolError("a payload on a heartbeat connection")

    def payload_done(self, frame: Frame) -> None:
        raise AssertionError("unreachable: payload() refuses them all")

    def lost(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        self._owner.ended(self, error)
        self._answer(error or ConnectionResetError("the other side closed the connection"))

    # -- inside

    def _introduce(self, frame: Frame) -> None:
        if frame.type == FrameType.BEAT and self._server_rank >= 0:
            self._owner.not_met(self._server_rank)
            return
        try:
            if frame.type == FrameType.REJECT:
                raise HandshakeError(refusal(frame.meta))
            if frame.type != FrameType.HELLO:
                raise HandshakeError("the other side sent a frame before the handshake")
            answer = self._handshake.receive(frame.meta)
        except HandshakeError as error:
            if frame.type != FrameType.REJECT:
                self.tell(FrameType.REJECT, str(error).encode()[:MAX_META])
            raise
        if answer is not None:
            self.tell(FrameType.HELLO, answer)
        if self._handshake.done:
            self.rank = self._handshake.peer_rank
            self._owner.proven(self)
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        on_proven, self.on_proven = self.on_proven, None
        if on_proven is not None:
            on_proven(error)
