"""What all connections have in common: a queue of data to send, and safe callbacks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from aiodist.errors import DistNetworkError
from aiodist.transport.base_transport import Connection, OnAccept, OnSent, Receiver


class CallbackConnection(Connection):
    """A connection's queue and its callbacks, none of which may harm the stream.

    An exception from ``on_sent`` or ``lost`` goes to the loop's exception handler.
    """

    def __init__(self, scheme: str, peer_name: str) -> None:
        self.scheme = scheme
        self.peer_name = peer_name
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        # Views that are still to be sent, each with the callback for its last byte.
        self._queue: deque[tuple[memoryview, OnSent | None]] = deque()
        self._ended_unseen: list[BaseException | None] = []  # an end before start() was called

    def release(self, memory: memoryview) -> None:
        for place, (view, on_sent) in enumerate(self._queue):
            if view.obj is memory.obj:
                self._queue[place] = (memoryview(bytes(view)), on_sent)

    def _enqueue(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None) -> None:
        views = [byte_view(part) for part in parts] or [_EMPTY]
        last = views.pop()
        for view in views:
            self._queue.append((view, None))
        self._queue.append((last, on_sent))

    def _fail_queue(self, error: BaseException) -> None:
        while self._queue:
            self._report_sent(self._queue.popleft()[1], error)

    def _report_sent(self, on_sent: OnSent | None, error: BaseException | None) -> None:
        if on_sent is not None:
            try:
                on_sent(error)
            except Exception as raised:  # noqa: BLE001  # not the stream's trouble
                self._complain("on_sent", raised)

    def _tell_lost(self, receiver: Receiver, error: BaseException | None) -> None:
        try:
            receiver.lost(error)
        except Exception as raised:  # noqa: BLE001  # not the stream's trouble
            self._complain("lost", raised)

    def _complain(self, where: str, raised: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"{where} callback of {self!r} raised", "exception": raised}
        )

    def _closed_error(self) -> DistNetworkError:
        return DistNetworkError(
            f"the connection to {self.peer_name} is closed: this was not sent on it"
        )

    def _ended_error(self) -> DistNetworkError:
        return DistNetworkError(
            f"the other side closed the connection ({self.peer_name}): this was not sent"
        )


_EMPTY = memoryview(b"")


def hand_over(connection: Connection, on_accept: OnAccept, where: str) -> None:
    """Call ``on_accept(connection)``, of the listener at ``where``. If it raises, abort that connection."""
    try:
        on_accept(connection)
    except Exception as error:  # noqa: BLE001  # one connection's trouble
        connection.abort()
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"on_accept of {where} raised", "exception": error}
        )


def byte_view(part: memoryview | bytes) -> memoryview:
    """Return ``part`` as a flat view of bytes."""
    view = memoryview(part)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B") if view.nbytes else _EMPTY  # cast refuses what is empty
