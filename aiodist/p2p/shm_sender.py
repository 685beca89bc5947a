"""Send to one other rank of the host through memory and not over a stream.

`p2p.shm_receiver.ShmReceiver` is the other end, `shm/message_ring.py` has the memory. A message
that the ring has room for goes in at once, and takes no credit. Another one is announced over the
stream, and the receiver reads it where it is (`p2p.direct_receiver`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiodist.errors import DistNetworkError, ProtocolError, summary_of
from aiodist.shm.message_ring import SPREAD
from aiodist.tensors.raw_memory import address_of
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import FrameType, encode

if TYPE_CHECKING:
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.message_ring import RingWriter
    from aiodist.shm.shared_memory import SharedMemory

RING_BYTES = 4 << 20
"""Payloads up to this length go into the ring at once if it has room."""

PIECE_BYTES = 128 << 10
"""Bytes of a longer record that are copied in before the receiver may begin to copy out."""

Call = Callable[[Callable[[], None]], None]
"""Calls its argument where the loop counts as running."""

RING_WAKE = encode(FrameType.WAKE, id=1)
"""Wakes the rank at the other end of a ring: there is a record."""


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
        """Messages that have gone to the peer over the stream."""
        self._ring: RingWriter | None = None
        self._asked = False
        self._announced: dict[int, None] = {}  # ids of messages that the peer may read, in order

    @property
    def ring(self) -> RingWriter | None:
        """The ring, or None if the peer has not mapped this rank's memory, or there is no room."""
        if self._ring is None and not self._asked and self._memory.is_mapped_by(self._rank):
            self._asked = True
            self._ring = self._memory.ring_writer_to(self._rank)
        return None if self._ring is None or self._ring.is_closed else self._ring

    # -- from the outbox

    def announce(self, id: int, data: memoryview) -> int:
        """Return where the peer may read message ``id`` in this process's memory; 0 for nowhere.

        The peer may use this rank's core for it until `answered`. Ids ascend.
        """
        if self.ring is None or id - next(iter(self._announced), id) > SPREAD:
            return 0
        self._announced[id] = None
        self._shm_progress.spin_policy.lent += 1
        return address_of(data)

    def answered(self, id: int) -> None:
        """Record that the peer does not read message ``id``, or not any more. Idempotent."""
        if id in self._announced:
            del self._announced[id]
            self._shm_progress.spin_policy.lent -= 1

    def withdraw(self) -> int:
        """Record that an announced message is taken back, before its memory changes.

        Returns how many were, 0 without a ring.
        """
        return 0 if self.ring is None else self.ring.withdraw()

    def has_read(self, id: int) -> bool:
        """Return whether the peer has noted message ``id`` as read. Call it after `withdraw`."""
        return self.ring is not None and self.ring.has_read(id)

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
            return self._put(ring, head, data, call)
        except ProtocolError as error:
            self._shm_progress.call_in_next_turn(partial(self.broken, error))
            return False

    def fail(self) -> None:
        """Put nothing more into the ring: the peer is lost. What it reads from now on is void."""
        self.withdraw()
        self._ring, self._asked = None, True

    # -- inside

    def _put(self, ring: RingWriter, head: bytes, data: memoryview, call: Call) -> bool:
        """Put a record into the ring, piece by piece. Returns False if there is no room now.

        Raises ProtocolError if the peer's count is impossible.
        """
        # If the ranks share a core, the receiver should find the whole record.
        piece = PIECE_BYTES if self._shm_progress.spin_policy.active else len(data)
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
                self.fail()
                cut = DistNetworkError(f"a message to it was cut short by {summary_of(error)}")
                self._shm_progress.call_in_next_turn(partial(self.broken, cut))
            raise
        return True

    def _wake(self) -> None:
        self._connection.send((RING_WAKE,))
