"""Short messages to one other rank of the host, through memory and not over a stream.

`eager_receiver.ShmEagerReceiver` is the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiodist.errors import ProtocolError
from aiodist.transport.base import Connection
from aiodist.wire.frames import FrameType, encode

if TYPE_CHECKING:
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.shm.eager_ring import EagerRingWriter
    from aiodist.shm.shared_memory import SharedMemory

EAGER_RING_BYTES = 4 << 20
"""Payloads up to this length go through an eager ring if it has room."""

PIECE_BYTES = 128 << 10
"""Bytes of a longer message that are copied in before the receiver may begin to copy out."""

_EAGER_READY = (encode(FrameType.EAGER_READY),)


class ShmEagerSender:
    """Put short messages for one peer into this rank's eager ring, which the first message
    allocates.
    """

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
        self._broken = broken
        self._eager_ring: EagerRingWriter | None = None
        self._asked = False

    def put(self, turn: int, head: bytes, data: memoryview) -> bool:
        """Put a message into the ring behind message number ``turn`` of the stream.

        The send is complete after `see_off`. Returns False if there is no room now.
        """
        if len(data) > EAGER_RING_BYTES:
            return False
        eager_ring = self._eager_ring
        if eager_ring is None and not self._asked and self._memory.is_mapped_by(self._rank):
            self._asked = True
            self._eager_ring = eager_ring = self._memory.eager_writer_to(self._rank)
        if eager_ring is None or eager_ring.is_closed:
            return False
        try:
            # If the ranks share a core, the receiver should find the whole message.
            piece = PIECE_BYTES if self._shm_progress.is_wakeful else EAGER_RING_BYTES
            return eager_ring.put(turn, head, data, piece)
        except ProtocolError as error:
            self._shm_progress.call_in_next_turn(partial(self._broken, error))
            return False

    def see_off(self, data: memoryview, call: Callable[[Callable[[], None]], None]) -> None:
        """Wake the peer if it sleeps, and copy the rest of the message's ``data`` that `put` has
        left.

        ``call(ring)`` must call ``ring()``. A long message wakes the peer before it is complete, so
        that the peer copies out while this rank copies in.
        """
        self._wake(call)
        eager_ring = self._eager_ring
        if len(data) > PIECE_BYTES and eager_ring is not None and not eager_ring.is_whole:
            while eager_ring.fill(data, PIECE_BYTES):
                pass
            self._wake(call)

    def _wake(self, call: Callable[[Callable[[], None]], None]) -> None:
        eager_ring = self._eager_ring
        if eager_ring is not None and eager_ring.must_wake():
            call(self._ring)

    def _ring(self) -> None:
        self._connection.send(_EAGER_READY)
