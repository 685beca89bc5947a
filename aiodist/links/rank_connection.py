"""A connection between two ranks, for messages or for heartbeats: first the handshake."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from aiodist.errors import HandshakeError
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import MAX_META, Frame, FrameDecoder, FrameHandler, FrameType, encode
from aiodist.wire.handshake import Handshake, refusal


class RankConnection(FrameHandler):
    """One connection. A subclass gives `_introduce` all frames until the other side has proven itself."""

    def __init__(self, connection: Connection, handshake: Handshake) -> None:
        self.connection = connection
        self.on_proven: Callable[[BaseException | None], None] | None = None
        self._handshake = handshake
        self._server_rank = -1
        # A side that has not proven itself cannot make this rank allocate memory.
        self._decoder = FrameDecoder(self, max_payload=0)

    @property
    def dialled(self) -> bool:
        """Whether this rank has made the connection."""
        return self._server_rank >= 0

    def start(self, server_rank: int | None = None) -> None:
        """Begin to read. With ``server_rank``, act as the client of the handshake with that rank."""
        self.connection.start(self._decoder)
        if server_rank is not None:
            self._server_rank = server_rank
            self.tell(FrameType.HELLO, self._handshake.start(server_rank))

    def tell(self, type: FrameType, meta: bytes = b"", *, id: int = 0) -> None:
        self.connection.send([encode(type, meta=meta, id=id)])

    def abort(self, error: BaseException) -> None:
        """Close at once because of ``error``, and report it to the tasks that wait for the connection."""
        self.connection.abort()
        self.lost(error)

    # -- for a subclass

    def _greeted(self) -> bool:
        """Return whether a rank whose HELLO is valid gets an answer."""
        return True

    @abstractmethod
    def _proven(self) -> None:
        """Take note that the handshake has proven the other side's rank."""

    def _introduce(self, frame: Frame) -> None:
        try:
            if frame.type == FrameType.REJECT:
                reason = refusal(frame.meta)
                raise HandshakeError(f"{self.connection.peer_name} refused this rank: {reason}")
            if frame.type != FrameType.HELLO:
                raise HandshakeError("the other side sent a frame before the handshake")
            answer = self._handshake.receive(frame.meta)
        except HandshakeError as error:
            if frame.type != FrameType.REJECT:
                self.tell(FrameType.REJECT, str(error).encode()[:MAX_META])
            raise
        if answer is not None:
            if not self._greeted():
                return
            self.tell(FrameType.HELLO, answer)
        if self._handshake.done:
            self._proven()
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        """Tell the task that waits for the proof; ``error``: why there will be none."""
        on_proven, self.on_proven = self.on_proven, None
        if on_proven is not None:
            on_proven(error)
