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
"""Payloads up to this length go through an eager ring, where it has room."""

PIECE_BYTES = 128 << 10
"""Of a longer one as much is copied in before the receiver may begin to copy out."""

_EAGER_READY = (encode(FrameType.EAGER_READY),)


class ShmEagerSender:
    """What this rank puts into its eager ring for one other. It makes the eager ring at the first
    message.
    """

    def __init__(
        self,
        rank: int,
        memory: SharedMemory,
        shm_progress: ShmProgress,
        connection: Connection,
        broken: Callable[[BaseException], None],
    ) -> None:
        """``broken(error)`` is called where the other rank does not keep to the protocol."""
        self._rank = rank
        self._memory = memory
        self._shm_progress = shm_progress
        self._connection = connection
        self._broken = broken
        self._eager_ring: EagerRingWriter | None = None
        self._asked = False

    def put(self, turn: int, head: bytes, data: memoryview) -> bool:
        """Send a message behind ``turn`` of the stream's: it is away after `see_off`.

        False: there is no room for it now.
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
            # Where ranks take turns on a core whoever finds a message shall find all of it.
            piece = PIECE_BYTES if self._shm_progress.is_wakeful else EAGER_RING_BYTES
            return eager_ring.put(turn, head, data, piece)
        except ProtocolError as error:
            self._shm_progress.later(partial(self._broken, error))
            return False

    def see_off(self, data: memoryview, call: Callable[[Callable[[], None]], None]) -> None:
        """Wake the other rank if it sleeps, and copy what `put` has left of the message's ``data``.

        ``call(ring)`` is to call ``ring()``. A long message rings before it is there: whoever was
        woken copies out what has come while more is copied in.
        """
        self._wake(call)
        eager_ring = self._eager_ring
        if len(data) > PIECE_BYTES and eager_ring is not None and not eager_ring.is_whole:
            while eager_ring.fill(data, PIECE_BYTES):
                pass
            self._wake(call)

    def _wake(self, call: Callable[[Callable[[], None]], None]) -> None:
        eager_ring = self._eager_ring
        if eager_ring is not None and eager_ring.must_ring():
            call(self._ring)

    def _ring(self) -> None:
        self._connection.send(_EAGER_READY)
