"""Short messages to one other rank of the host, through memory and not over a stream.

`mailbox.Mailbox` is the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiodist.errors import ProtocolError
from aiodist.transport.base import Connection
from aiodist.wire.frames import FrameType, encode

if TYPE_CHECKING:
    from aiodist.mesh.harbour import Harbour
    from aiodist.shared.box import BoxOut
    from aiodist.shared.memory import SharedMemory

BOX_BYTES = 4 << 20
"""Payloads up to this length go through a box, where it has room."""

PIECE_BYTES = 128 << 10
"""Of a longer one as much is copied in before the receiver may begin to copy out."""

_BOXED = (encode(FrameType.BOXED),)


class Chute:
    """What this rank puts into its box for one other. It makes the box at the first message."""

    def __init__(
        self,
        rank: int,
        memory: SharedMemory,
        harbour: Harbour,
        connection: Connection,
        broken: Callable[[BaseException], None],
    ) -> None:
        """``broken(error)`` is called where the other rank does not keep to the protocol."""
        self._rank = rank
        self._memory = memory
        self._harbour = harbour
        self._connection = connection
        self._broken = broken
        self._box: BoxOut | None = None
        self._asked = False

    def put(self, turn: int, head: bytes, data: memoryview) -> bool:
        """Send a message behind ``turn`` of the stream's: it is away after `see_off`.

        False: there is no room for it now.
        """
        if len(data) > BOX_BYTES:
            return False
        box = self._box
        if box is None and not self._asked and self._memory.is_mapped_by(self._rank):
            self._asked = True
            self._box = box = self._memory.box_to(self._rank)
        if box is None or box.is_closed:
            return False
        try:
            # Where ranks take turns on a core whoever finds a message shall find all of it.
            piece = PIECE_BYTES if self._harbour.is_wakeful else BOX_BYTES
            return box.put(turn, head, data, piece)
        except ProtocolError as error:
            self._harbour.later(partial(self._broken, error))
            return False

    def see_off(self, data: memoryview, call: Callable[[Callable[[], None]], None]) -> None:
        """Wake the other rank if it sleeps, and copy what `put` has left of the message's ``data``.

        ``call(ring)`` is to call ``ring()``. A long message rings before it is there: whoever was
        woken copies out what has come while more is copied in.
        """
        self._wake(call)
        box = self._box
        if len(data) > PIECE_BYTES and box is not None and not box.is_whole:
            while box.fill(data, PIECE_BYTES):
                pass
            self._wake(call)

    def _wake(self, call: Callable[[Callable[[], None]], None]) -> None:
        box = self._box
        if box is not None and box.must_ring():
            call(self._ring)

    def _ring(self) -> None:
        self._connection.send(_BOXED)
