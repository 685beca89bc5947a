"""Send the payloads of long messages to a rank of this host through shared memory.

The protocols, the order and the credit are those of the stream. A PLACED frame replaces the EAGER
frame of a message, and the payload goes through the chunks of a bulk ring (`shm/bulk_ring.py`),
piece by piece. The parts of a large message go the same way. One rank copies in while the other
copies out, and the kernel carries only headers and WAKE frames. Frames of other messages pass
meanwhile.
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
"""Payloads from this length on go through shared memory; below it a stream is as fast."""

PIECES = 8
"""Pieces of a message of middling length: the receiver copies the first while the sender copies on.
"""

MIN_PIECE_BYTES = 64 << 10
"""The shortest piece. Shorter pieces cost more than the overlap saves."""

Broken = Callable[[BaseException], None]

_BULK_FILLED = (encode(FrameType.BULK_FILLED),)


class _Job:
    """The bytes of one message or part that go through the bulk ring in order."""

    __slots__ = ("data", "done", "on_sent", "piece", "ticket")

    def __init__(self, data: memoryview, ticket: int, piece: int, on_sent: OnSent) -> None:
        self.data = data
        self.ticket = ticket
        self.piece = piece
        self.on_sent = on_sent
        self.done = 0


class ShmBulkSender:
    """What this rank sends to one peer through shared memory.

    It allocates chunks on first use. An idle ring may lose its chunks to another ring, so a large
    message pins them from its first part to its last.
    """

    def __init__(
        self, rank: int, shm_progress: ShmProgress, connection: Connection, broken: Broken
    ) -> None:
        """Create a sender without memory. ``broken(error)`` is called if the peer breaks the
        protocol.
        """
        self._rank = rank
        self._shm_progress = shm_progress
        self._connection = connection
        self.broken = broken
        self._out: BulkRingWriter | None = None
        self._failed = False
        self._jobs: deque[_Job] = deque()

    @property
    def is_open(self) -> bool:
        """Return whether there are chunks to send through now; if not, the stream takes the
        message.
        """
        out, memory = self._out, self._shm_progress.memory
        if (out is None or not out.is_attached) and not self._failed and memory is not None:
            out = memory.bulk_writer_to(self._rank)
            self._out = out or self._out
        return out is not None and out.is_attached

    def pin(self) -> bool:
        """Keep the chunks until `unpin` has been called as often. Returns False if there are none."""
        if not self.is_open or self._out is None:
            return False
        self._out.users += 1
        return True

    def unpin(self) -> None:
        """End one `pin`. Do not call it after a failure."""
        if self._out is not None:
            self._out.users -= 1

    # -- from the outbox

    def place(self, key: Key, data: memoryview, meta: bytes, on_sent: OnSent) -> None:
        """Send a message and its data, while open. ``on_sent``: as of `Connection.send`."""
        self.pin()
        length = len(data)
        header = encode(FrameType.PLACED, key, length=length, meta=meta)
        job = _Job(data, 0, max(-(-length // PIECES), MIN_PIECE_BYTES), on_sent)
        out = self._out
        if out is not None and not out.is_closed:
            out.will_wake()
            if not self._shm_progress.is_wakeful:
                # If the ranks share a core, pieces gain nothing: the woken receiver should find
                # the whole message.
                job.piece = length
                with suppress(ProtocolError):  # the next step raises the error again
                    if not self._jobs and out.free():
                        self._fill(out, job)
        self._connection.send((header,))
        self._jobs.append(job)
        self._shm_progress.enlist(self)

    def put(self, ticket: int, data: memoryview, on_sent: OnSent) -> None:
        """Send the next bytes for receive number ``ticket``, while pinned. ``on_sent``: as for
        `place`.
        """
        self.pin()
        self._jobs.append(_Job(data, ticket, len(data), on_sent))
        self._shm_progress.enlist(self)

    def release(self, memory: memoryview) -> None:
        """Copy what is still to be sent of the object behind ``memory``, which may change from now
        on.
        """
        for job in self._jobs:
            if job.data.obj is memory.obj:
                job.data = memoryview(bytes(job.data))

    def fail(self, error: BaseException) -> None:
        """Fail all jobs: the peer is lost."""
        self._failed = True
        out, self._out = self._out, None
        if out is not None:
            out.users = 0
        jobs = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            job.on_sent(error)
        self._shm_progress.work()  # removes this source, which has nothing to do any more

    def emptied(self) -> None:
        """Continue: the peer says that chunks are free again."""
        if self._jobs:
            self._shm_progress.enlist(self)

    # -- p2p.shm_progress.ProgressSource

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    owes = is_busy

    @property
    def is_near(self) -> bool:
        # A sleeping receiver reads the wake-up in a turn of its loop. It may wait for this loop.
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

    def arm(self) -> bool:
        out = self._out
        if out is None or out.is_closed or not self._jobs:
            return True
        out.arm()
        return not out.free()

    def _fill(self, out: BulkRingWriter, job: _Job) -> None:
        piece = job.data[job.done : job.done + min(job.piece, out.chunk_bytes)]
        job.done += len(piece)
        if out.fill(piece, job.ticket):
            self._connection.send(_BULK_FILLED)
