"""Receive the payloads of long messages from a rank of this host through shared memory.

`p2p/shm_bulk_sender.py` has the protocol. The receiver takes every announced piece and never stops
reading its streams, so no two ranks wait for each other here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.p2p.partial_message import PartialMessage
from aiodist.wire.frames import Frame, FrameType, encode

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox, Source
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.bulk_ring import BulkRingReader

Broken = Callable[[BaseException], None]

_BULK_EMPTIED = encode(FrameType.BULK_EMPTIED)


class ShmBulkReceiver:
    """What one peer sends to this rank through shared memory."""

    def __init__(
        self, source: Source, inbox: Inbox, shm_progress: ShmProgress, broken: Broken
    ) -> None:
        self._source = source
        self._inbox = inbox
        self._shm_progress = shm_progress
        self.broken = broken
        self.bytes_taken = 0
        self._bulk_ring: BulkRingReader | None = None
        self._placed: deque[PartialMessage] = deque()
        self._midway = False  # the last piece belonged to a large message that has more to come

    # -- from the link

    def placed(self, frame: Frame) -> None:
        """Expect a message whose payload comes in pieces."""
        one = PartialMessage(frame.length)
        one.goes_to(self._inbox.eager(self._source, frame, one))
        self._placed.append(one)
        self.filled()

    def filled(self) -> None:
        """Copy out the pieces that are there, or on their way."""
        bulk_ring = self._bulk_ring
        if bulk_ring is None:
            memory = self._shm_progress.memory
            bulk_ring = None if memory is None else memory.bulk_reader_from(self._source.rank)
            if bulk_ring is None:
                raise ProtocolError(f"rank {self._source.rank} names memory that it does not share")
            self._bulk_ring = bulk_ring
        if not bulk_ring.is_closed:
            bulk_ring.disarm()
            self._shm_progress.enlist(self)

    def interrupted(self, error: BaseException) -> None:
        """End the message that was arriving: the peer is lost."""
        placed, self._placed = self._placed, deque()
        for one in placed:
            self._inbox.interrupted(one.target, error)
        self._midway = False
        self._shm_progress.work()

    # -- p2p.shm_progress.ProgressSource

    owes = False

    @property
    def is_busy(self) -> bool:
        return bool(self._placed) or self._midway

    is_near = is_busy

    def step(self) -> bool:
        found = self._next()
        if found is None:
            return False
        ticket, data = found
        if ticket:
            self._part(ticket, data)
            return True
        one = self._placed[0]
        if len(data) > one.length - one.got:
            raise ProtocolError("a piece extends beyond the end of its message")
        one.add(data)
        self._taken(data)
        if one.is_whole:
            self._placed.popleft()
            self._inbox.eager_done(self._source, one.target)
        return True

    def arm(self) -> bool:
        bulk_ring = self._bulk_ring
        if bulk_ring is None or bulk_ring.is_closed:
            return True
        bulk_ring.arm()
        if self._next() is None:
            return True
        bulk_ring.disarm()
        return False

    # -- inside

    def _next(self) -> tuple[int, memoryview] | None:
        bulk_ring = self._bulk_ring
        if bulk_ring is None or bulk_ring.is_closed:
            return None
        found = bulk_ring.next()
        # The piece may belong to a message whose header is still in the stream. That header will
        # be the next wake-up.
        return None if found is not None and not found[0] and not self._placed else found

    def _part(self, ticket: int, data: memoryview) -> None:
        recv = self._inbox.promised(ticket)
        if recv is not None and recv.into is not None:
            place = recv.into[recv.got : recv.got + len(data)]
            if len(place) != len(data):
                raise ProtocolError("a part extends beyond the end of its message")
            copy(place, data)
        self._taken(data)
        self._inbox.part_done(self._source, recv, len(data))
        self._midway = recv is not None and not recv.done

    def _taken(self, data: memoryview) -> None:
        self.bytes_taken += len(data)
        if self._bulk_ring is not None and self._bulk_ring.taken():
            self._source.outbox.control(_BULK_EMPTIED)
