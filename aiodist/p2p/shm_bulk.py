"""Messages between ranks of one host, by way of memory that they share.

The protocols, their order and their credit are the stream's: an eager message is headed by a PLACED
frame instead of an EAGER one, and the payload that would follow it, or the parts of a large message,
go through the chunks of a bulk ring (`shm/bulk_ring.py`), piece by piece. So one rank copies in while the
other copies out, and the kernel moves only headers and bells. Frames of other messages pass meanwhile.

The receiver takes every piece that it is told of, and never stops reading its streams: no rank waits
here for one that waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.p2p.partial_message import PartialMessage
from aiodist.transport.base import Connection, OnSent
from aiodist.wire.frames import Frame, FrameType, Key, encode

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox, Source
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.bulk_ring import BulkRingReader, BulkRingWriter

BULK_RING_BYTES = 128 << 10
"""From this length on a payload goes through shared memory; below, a stream is as fast."""

PIECES = 8
"""Of a message of middling length: the receiver begins before the sender has ended."""

MIN_PIECE_BYTES = 64 << 10
"""More of them would cost more than they hide."""

Broken = Callable[[BaseException], None]

_BULK_FILLED = (encode(FrameType.BULK_FILLED),)
_BULK_EMPTIED = encode(FrameType.BULK_EMPTIED)


class _Job:
    """Bytes that go through the bulk ring, one after the other."""

    __slots__ = ("data", "done", "on_sent", "piece", "whose")

    def __init__(self, data: memoryview, whose: int, piece: int, on_sent: OnSent) -> None:
        self.data = data
        self.whose = whose
        self.piece = piece
        self.on_sent = on_sent
        self.done = 0


class ShmBulkSender:
    """What this rank sends to one other through shared memory.

    It takes room on first use, and when it uses none another bulk ring may have it. So a large message
    that goes this way holds it from its first part to its last.
    """

    def __init__(
        self, rank: int, shm_progress: ShmProgress, connection: Connection, broken: Broken
    ) -> None:
        """``broken(error)`` is called where the other rank does not keep to the protocol."""
        self._rank = rank
        self._shm_progress = shm_progress
        self._connection = connection
        self.broken = broken
        self._out: BulkRingWriter | None = None
        self._failed = False
        self._jobs: deque[_Job] = deque()

    @property
    def is_open(self) -> bool:
        """Whether there is memory for what is sent at once; if not, the stream takes it."""
        out, memory = self._out, self._shm_progress.memory
        if (out is None or not out.is_attached) and not self._failed and memory is not None:
            out = memory.bulk_writer_to(self._rank)
            self._out = out or self._out
        return out is not None and out.is_attached

    def pin(self) -> bool:
        """Keep the memory, if there is, until `unpin` is called as often; whether there is."""
        if not self.is_open or self._out is None:
            return False
        self._out.users += 1
        return True

    def unpin(self) -> None:
        """The end of what `pin` began. Not where this has failed."""
        if self._out is not None:
            self._out.users -= 1

    # -- from the outbox

    def place(self, key: Key, data: memoryview, meta: bytes, on_sent: OnSent) -> None:
        """Send a message with its data behind it, while open. ``on_sent``: as a connection's."""
        self.pin()
        length = len(data)
        header = encode(FrameType.PLACED, key, length=length, meta=meta)
        job = _Job(data, 0, max(-(-length // PIECES), MIN_PIECE_BYTES), on_sent)
        out = self._out
        if out is not None and not out.is_closed:
            out.will_wake()
            if not self._shm_progress.is_wakeful:
                # Nothing is won by pieces where the ranks take turns on a core: whoever is woken
                # shall find all that there is.
                job.piece = length
                with suppress(ProtocolError):  # which the next step raises as well
                    if not self._jobs and out.free():
                        self._fill(out, job)
        self._connection.send((header,))
        self._jobs.append(job)
        self._shm_progress.enlist(self)

    def put(self, ticket: int, data: memoryview, on_sent: OnSent) -> None:
        """Send the next bytes for receive number ``ticket``, while held. ``on_sent``: likewise."""
        self.pin()
        self._jobs.append(_Job(data, ticket, len(data), on_sent))
        self._shm_progress.enlist(self)

    def release(self, memory: memoryview) -> None:
        """Copy what is still to be sent of the object behind ``memory``: it may change from now on."""
        for job in self._jobs:
            if job.data.obj is memory.obj:
                job.data = memoryview(bytes(job.data))

    def fail(self, error: BaseException) -> None:
        """The other rank is gone."""
        self._failed = True
        out, self._out = self._out, None
        if out is not None:
            out.users = 0
        jobs = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            job.on_sent(error)
        self._shm_progress.work()  # which notices that there is nothing to be done

    def emptied(self) -> None:
        """The other rank says that there are free chunks again."""
        if self._jobs:
            self._shm_progress.enlist(self)

    # -- p2p.shm_progress.ProgressSource

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    owes = is_busy

    @property
    def is_near(self) -> bool:
        # Who naps reads the bell in a turn of its loop, and perhaps waits for a turn of this one.
        return self._out is not None and self._out.is_watched

    def step(self) -> bool:
        out, jobs = self._out, self._jobs
        if out is None or out.is_closed or not jobs:
            return False
        job = jobs[0]
        if job.done < len(job.data):
            if not out.free():
                return False
            self._fill(out, job)
        if job.done == len(job.data):
            jobs.popleft()
            self.unpin()
            job.on_sent(None)
        return True

    def rest(self) -> bool:
        out = self._out
        if out is None or out.is_closed or not self._jobs:
            return True
        out.nap()
        return not out.free()

    def _fill(self, out: BulkRingWriter, job: _Job) -> None:
        piece = job.data[job.done : job.done + min(job.piece, out.chunk_bytes)]
        job.done += len(piece)
        if out.fill(piece, job.whose):
            self._connection.send(_BULK_FILLED)


class ShmBulkReceiver:
    """What one other rank sends to this one through shared memory."""

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
        self._midway = False  # the last piece was of a large message, and more are to come

    # -- from the link

    def placed(self, frame: Frame) -> None:
        """A message whose payload comes in pieces."""
        one = PartialMessage(frame.length)
        one.goes_to(self._inbox.eager(self._source, frame, one))
        self._placed.append(one)
        self.filled()

    def filled(self) -> None:
        """Pieces are there, or on their way."""
        bulk_ring = self._bulk_ring
        if bulk_ring is None:
            memory = self._shm_progress.memory
            bulk_ring = None if memory is None else memory.bulk_reader_from(self._source.rank)
            if bulk_ring is None:
                raise ProtocolError(
                    f"rank {self._source.rank} speaks of memory that it does not share"
                )
            self._bulk_ring = bulk_ring
        if not bulk_ring.is_closed:
            bulk_ring.wake()
            self._shm_progress.enlist(self)

    def interrupted(self, error: BaseException) -> None:
        """The other rank is gone, in the middle of what it was sending."""
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
        whose, data = found
        if whose:
            self._part(whose, data)
            return True
        one = self._placed[0]
        if len(data) > one.length - one.got:
            raise ProtocolError("a piece runs over the end of its message")
        one.add(data)
        self._taken(data)
        if one.is_whole:
            self._placed.popleft()
            self._inbox.eager_done(self._source, one.target)
        return True

    def rest(self) -> bool:
        bulk_ring = self._bulk_ring
        if bulk_ring is None or bulk_ring.is_closed:
            return True
        bulk_ring.nap()
        if self._next() is None:
            return True
        bulk_ring.wake()
        return False

    # -- inside

    def _next(self) -> tuple[int, memoryview] | None:
        bulk_ring = self._bulk_ring
        if bulk_ring is None or bulk_ring.is_closed:
            return None
        found = bulk_ring.next()
        # Of a message whose header is still in the stream: that will be the next bell.
        return None if found is not None and not found[0] and not self._placed else found

    def _part(self, ticket: int, data: memoryview) -> None:
        recv = self._inbox.promised(ticket)
        if recv is not None and recv.into is not None:
            place = recv.into[recv.got : recv.got + len(data)]
            if len(place) != len(data):
                raise ProtocolError("a part runs over the end of its message")
            copy(place, data)
        self._taken(data)
        self._inbox.part_done(self._source, recv, len(data))
        self._midway = recv is not None and not recv.done

    def _taken(self, data: memoryview) -> None:
        self.bytes_taken += len(data)
        if self._bulk_ring is not None and self._bulk_ring.taken():
            self._source.outbox.control(_BULK_EMPTIED)
