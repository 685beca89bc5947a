"""What ranks tell each other about collectives beside their messages, and who hears of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from aiodist.p2p.endpoint_events import EndpointEvents, Presence
from aiodist.p2p.peer import Peer
from aiodist.wire.frames import MAX_META, Frame, FrameType, encode

_BETWEEN = "\0"
_LONGEST = MAX_META // 8 - 1
"""Characters of each of two texts, of up to 4 bytes each."""


class ControlMessages(ABC):
    """The part of an `Endpoint` that knows what such a frame says, and not how it gets there."""

    _events: EndpointEvents

    @abstractmethod
    def _tell(self, rank: int, frame: bytes, payload: Sequence[bytes] = ()) -> bool:
        """Send a frame of the protocol to ``rank``, connected or not; False if it is gone."""

    # -- to other ranks

    def announce_failure(
        self, group: int, sequence: int, error: bytes, ranks: Sequence[int]
    ) -> None:
        """Tell ``ranks`` that a collective failed here, and why."""
        frame = encode(FrameType.ABORT, (0, group, sequence), length=len(error))
        for rank in ranks:
            self._tell(rank, frame, [error])

    def query_status(self, group: int, sequence: int, ranks: Sequence[int]) -> list[int]:
        """Ask ``ranks`` whether they have entered a collective, and what they do. Returns those that may
        answer. ``sequence`` below 0: about no collective.
        """
        frame = encode(FrameType.STATUS_QUERY, (0, group, sequence))
        return [rank for rank in ranks if self._tell(rank, frame)]

    def agree(self, rank: int, group: int, number: int, message: bytes) -> None:
        """Send ``rank`` a message of an agreement; nothing where it is gone."""
        frame = encode(FrameType.AGREE, (0, group, number), length=len(message))
        self._tell(rank, frame, [message])

    def ring(self, rank: int, group: int) -> None:
        """Wake ``rank``, which sleeps over the memory that it shares with this one in ``group``."""
        self._tell(rank, encode(FrameType.WAKE, (0, group, 0)))

    # -- from other ranks

    def abort_arrived(self, peer: Peer, frame: Frame, error: memoryview) -> None:
        self._events.collective_failed(peer.rank, frame.group, frame.channel, error)

    def agree_arrived(self, peer: Peer, frame: Frame, message: memoryview) -> None:
        self._events.agree_arrived(peer.rank, frame.group, frame.channel, bytes(message))

    def status_queried(self, peer: Peer, frame: Frame) -> None:
        entered, *texts = self._events.present(frame.group, frame.channel)
        meta = _BETWEEN.join(text[:_LONGEST] for text in texts).encode()
        self._tell(peer.rank, encode(FrameType.PRESENT, frame.key, id=int(entered), meta=meta))

    def status_answered(self, peer: Peer, frame: Frame) -> None:
        last, _, now = frame.meta.decode("utf-8", "replace").partition(_BETWEEN)
        presence = Presence(frame.id != 0, last, now)
        self._events.status_answered(peer.rank, frame.group, frame.channel, presence)

    def woken(self, frame: Frame) -> None:
        self._events.woken(frame.group)
