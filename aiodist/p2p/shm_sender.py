"""Send to one other rank of the host through memory and not over a stream.

`p2p.shm_receiver.ShmReceiver` is the other end, `shm/message_ring.py` has the memory. A message
that the ring has room for goes in at once, and takes no credit. The parts of a granted message
follow each other through the ring: one rank copies in while the other copies out.

Invariant: a part waits for room only while nothing but another part is in the ring. The receiver
takes each part as soon as it sees it, so the room comes. A message may wait for its receive as long
as it likes. If one stands in the way, the stream carries the part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call
from typing import TYPE_CHECKING

from aiodist.errors import DistNetworkError, ProtocolError, summary_of
from aiodist.transport.base_transport import Connection, OnSent
from aiodist.wire.frames import FrameType, encode

if TYPE_CHECKING:
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.message_ring import RingWriter
    from aiodist.shm.shared_memory import SharedMemory

RING_BYTES = 4 << 20
"""Payloads up to this length go into the ring at once if it has room."""

PIECE_BYTES = 128 << 10
"""Bytes of a longer record that are copied in before the receiver may begin to copy out."""

PART_BYTES = 2 << 20
"""Length of a part, or half a shorter ring. The next one goes in once it is taken: two of them would
leave the cache between the two copies."""

MIN_PART_BYTES = 64 << 10
"""The shortest such part. With shorter ones the two ranks would wait for each other more than they copy."""

Call = Callable[[Callable[[], None]], None]
"""Calls its argument where the loop counts as running."""

RING_WAKE = encode(FrameType.WAKE, id=1)
"""Wakes the rank at the other end of a ring: there is a record, or room."""


class _Job:
    """A part of a message, on its way through the ring."""

    __slots__ = ("data", "on_sent", "ticket")

    def __init__(self, data: memoryview, ticket: int, on_sent: OnSent) -> None:
        self.data = data
        self.ticket = ticket
        self.on_sent = on_sent


class ShmSender:
    """What this rank sends to one peer through memory. The first message allocates the ring."""

    def __init__(
        self,
        rank: int,
        memory: SharedMemory,
        shm_progress: ShmProgress,
        connection: Connection,
        broken: Callable[[BaseException], None],
    ) -> None:
        """Create a sender without memory. ``broken(error)`` is called if the peer breaks the
        protocol.
        """
        self._rank = rank
        self._memory = memory
        self._shm_progress = shm_progress
        self._connection = connection
        self.broken = broken
        self.turn = 0
        """Messages and parts that have gone to the peer over the stream."""
        self._ring: RingWriter | None = None
        self._asked = False
        self._last_message = 0  # position in the ring behind the last message that is no part
        self._last_part = 0  # and behind the last part
        self._jobs: deque[_Job] = deque()

    @property
    def ring(self) -> RingWriter | None:
        """The ring, or None if the peer has not mapped this rank's memory, or there is no room."""
        if self._ring is None and not self._asked and self._memory.is_mapped_by(self._rank):
            self._asked = True
            self._ring = self._memory.ring_writer_to(self._rank)
        return None if self._ring is None or self._ring.is_closed else self._ring

    @property
    def part_bytes(self) -> int:
        """The length of a part; 0 without a ring, or if it is too small: then the stream carries parts."""
        ring = self.ring
        nbytes = 0 if ring is None else min(PART_BYTES, ring.nbytes // 2)
        return nbytes if nbytes >= MIN_PART_BYTES else 0

    # -- from the outbox

    def put(self, head: bytes, data: memoryview, call: Call) -> bool:
        """Send a message. Returns False if there is no room now.

        ``call``: how to send a wake-up. A long message wakes the peer before it is complete, so
        that the peer copies out while this rank copies in.
        """
        ring = self._ring
        if ring is None or ring.is_closed:
            ring = self.ring
        if ring is None or len(data) > RING_BYTES:
            return False
        try:
            if not self._put(ring, head, data, call):
                return False
        except ProtocolError as error:
            self._shm_progress.call_in_next_turn(partial(self.broken, error))
            return False
        self._last_message = ring.position
        return True

    def send_part(self, ticket: int, data: memoryview, on_sent: OnSent) -> None:
        """Send at most `part_bytes` for receive number ``ticket``.

        ``on_sent``: as of `Connection.send`.
        """
        self._jobs.append(_Job(data, ticket, on_sent))
        self._shm_progress.enlist(self)

    def release(self, memory: memoryview) -> None:
        """Copy what is still to be sent of the object behind ``memory``, which may change from now
        on.
        """
        for job in self._jobs:
            if job.data.obj is memory.obj:
                job.data = memoryview(bytes(job.data))

    def fail(self, error: BaseException) -> None:
        """Fail all parts: the peer is lost."""
        self._ring, self._asked = None, True
        jobs = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            job.on_sent(error)
        self._shm_progress.work()  # removes this source, which has nothing to do any more

    def woken(self) -> None:
        """Go on: the peer says that there is room again."""
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
        return self._ring is not None and self._ring.is_watched

    def step(self) -> bool:
        ring, jobs = self.ring, self._jobs
        if ring is None or not jobs:
            return False
        job = jobs[0]
        head = encode(FrameType.DATA, id=job.ticket, length=len(job.data))
        if ring.has_taken(self._last_part) and self._put(ring, head, job.data, call):
            self._last_part = ring.position
            jobs.popleft()
            job.on_sent(None)
            return True
        if ring.has_taken(self._last_message):
            return False
        jobs.popleft()
        self.turn += 1
        self._connection.send((head, job.data), job.on_sent)
        return True

    def arm(self) -> bool:
        ring = self.ring
        if ring is None or not self._jobs:
            return True
        ring.await_room()
        if ring.has_taken(self._last_part):
            return False
        if ring.is_watched:  # it may have no reason of its own to look
            self._wake()
        return True

    # -- inside

    def _put(self, ring: RingWriter, head: bytes, data: memoryview, call: Call) -> bool:
        """Put a record into the ring, piece by piece. Returns False if there is no room now.

        Raises ProtocolError if the peer's count is impossible.
        """
        # If the ranks share a core, the receiver should find the whole record.
        piece = PIECE_BYTES if self._shm_progress.is_wakeful else len(data)
        if not ring.put(self.turn, head, data, piece):
            return False
        try:
            if ring.must_wake():
                call(self._wake)
            if len(data) > piece:
                while ring.fill(data, piece):
                    pass
                if ring.must_wake():
                    call(self._wake)
        except BaseException as error:  # of a signal's handler
            if not ring.is_whole:  # the next record would follow half of this one
                self._ring, self._asked = None, True
                cut = DistNetworkError(f"a message to it was cut short by {summary_of(error)}")
                self._shm_progress.call_in_next_turn(partial(self.broken, cut))
            raise
        return True

    def _wake(self) -> None:
        self._connection.send((RING_WAKE,))
