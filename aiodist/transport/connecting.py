"""Non-blocking connect with a deadline, for every family of sockets."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.turning_timer import turning_timeout

_IN_PROGRESS = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY})
_BACKLOG_PAUSE = 0.002


class UnansweredError(DistNetworkError):
    """A process took the connection, and did not answer in time: its loop is busy, or it is stopped."""


@asynccontextmanager
async def within(deadline: Deadline) -> AsyncIterator[None]:
    """Raise TimeoutError in the body when the deadline passes, in the time that the loop turns."""
    left = deadline.remaining()
    if math.isinf(left):
        yield
        return
    async with turning_timeout(left):
        yield


class Detachable(Protocol):
    """A socket."""

    def detach(self) -> int:
        """Return its descriptor, which the caller closes."""


class SocketsBeingConnected:
    """The sockets of one transport that no connection owns yet."""

    def __init__(self) -> None:
        self._sockets: set[Detachable] = set()

    @contextmanager
    def hold(self, sock: Detachable) -> Iterator[None]:
        """Hold ``sock`` while the body waits."""
        self._sockets.add(sock)
        try:
            yield
        finally:
            self._sockets.discard(sock)

    def close_in_child(self) -> None:
        """Close them in a forked child, whose parent goes on to connect them. Idempotent."""
        while self._sockets:
            os.close(self._sockets.pop().detach())


async def connect_socket(sock: socket.socket, address: Any) -> None:
    """Connect the non-blocking ``sock``. Raises OSError; the caller owns and closes ``sock``.

    After a cancellation the loop no longer watches the socket.
    """
    code = sock.connect_ex(address)
    while code == errno.EAGAIN and sock.family == getattr(socket, "AF_UNIX", None):
        # The listener's backlog is full, and Unix sockets do not wait for it: try again.
        await asyncio.sleep(_BACKLOG_PAUSE)
        code = sock.connect_ex(address)
    if code in _IN_PROGRESS:
        await writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


async def writable(sock: socket.socket) -> None:
    """Return when ``sock`` takes bytes, or has failed."""
    loop = asyncio.get_running_loop()
    await _watched(sock, loop.add_writer, loop.remove_writer)


async def readable(sock: socket.socket) -> None:
    """Return when ``sock`` has bytes, or has ended."""
    loop = asyncio.get_running_loop()
    await _watched(sock, loop.add_reader, loop.remove_reader)


async def _watched(
    sock: socket.socket, add: Callable[..., object], remove: Callable[[int], object]
) -> None:
    """Return once the loop calls what ``add`` gives it for ``sock``; ``remove`` undoes that."""
    fd, ready = sock.fileno(), asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
