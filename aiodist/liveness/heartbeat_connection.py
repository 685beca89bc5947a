"""A connection between the heartbeat threads of two ranks: a handshake, then heartbeats and news."""

from __future__ import annotations

from typing import Protocol

from aiodist.errors import ProtocolError
from aiodist.links.rank_connection import RankConnection
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import Frame, FrameType
from aiodist.wire.handshake import Handshake

TYPES = (FrameType.BEAT, FrameType.LOST, FrameType.LEFT, FrameType.GOODBYE)


class Owner(Protocol):
    """What a heartbeat connection needs of the failure detector that it belongs to."""

    def not_met(self, rank: int) -> None: ...

    def proven(self, line: HeartbeatConnection) -> None: ...

    def said(self, line: HeartbeatConnection, frame: Frame) -> None: ...

    def ended(self, line: HeartbeatConnection, error: BaseException | None) -> None: ...


class HeartbeatConnection(RankConnection):
    """One connection. ``rank`` is -1 until the handshake has proven the rank of the other side."""

    def __init__(self, owner: Owner, connection: Connection, handshake: Handshake) -> None:
        super().__init__(connection, handshake)
        self.rank = -1
        self.heartbeat = 0.0, ""
        """When the last heartbeat of the other side came, and the activity that it reported."""
        self._owner = owner
        self._over = False

    # -- wire.FrameHandler

    def frame(self, frame: Frame, payload: memoryview) -> None:
        if self.rank < 0 and self.dialled and frame.type == FrameType.BEAT:
            self._owner.not_met(self._server_rank)
        elif self.rank < 0:
            self._introduce(frame)
        elif frame.type in TYPES:
            self._owner.said(self, frame)
        else:
            raise ProtocolError(f"a {FrameType(frame.type).name} frame on a heartbeat connection")

    def payload(self, frame: Frame) -> memoryview | None:  # a heartbeat is a header and metadata
        raise ProtocolError("a payload on a heartbeat connection")

    def payload_done(self, frame: Frame) -> None:
        raise AssertionError("unreachable: payload() refuses them all")

    def lost(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        self._owner.ended(self, error)
        self._answer(error or ConnectionResetError("the other side closed the connection"))

    # -- links.rank_connection.RankConnection

    def _proven(self) -> None:
        self.rank = self._handshake.peer_rank
        self._owner.proven(self)
