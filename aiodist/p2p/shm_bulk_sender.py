"""Long messages to a rank of the same host, by way of memory that both share.

The protocols, their order and their credit are those of the stream. A PLACED frame announces an eager
message in place of an EAGER frame. The payload, or the parts of a large message, go through the chunks
of a bulk ring (`shm/bulk_ring.py`), piece by piece. So one rank copies in while the other copies out, and
the kernel moves only headers and WAKE frames. Frames of other messages pass meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodist.errors import ProtocolError
from aiodist.transport.base import Connection, OnSent
from aiodist.wire.frames import FrameType, Key, encode

if TYPE_CHECKING:
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.bulk_ring import BulkRingWriter

BULK_RING_BYTES = 128 << 10
"""From this length on a payload goes through shared memory; below, a stream is as fast."""

PIECES = 8
"""Of a message of middling length: the receiver begins before the sender has ended."""

MIN_PIECE_BYTES = 64 << 10
"""More of them would cost more than they hide."""

Broken = Callable[[BaseException], None]

_BULK_FILLED = (encode(FrameType.BULK_FILLED),)


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
