"""Several stream sockets that look like one: bytes are striped in blocks of a fixed length.

The first `BLOCK_BYTES` bytes go by the first socket, the next ones by the second, and so on in
turn, in each direction separately. Both ends count, so nothing is added to the stream, and its
order is that of one socket. GridFTP and PSockets stripe in the same way (Sivakumar, Bailey and
Grossman, "PSockets: the case for application-level network striping", 2000).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from aiodist.transport.callbacks import byte_view

BLOCK_BYTES = 128 << 10
"""Long enough to hide a system call, and short enough to spread a megabyte over eight sockets."""


class Bundle:
    """The part of a non-blocking socket's interface that `stream_socket.SocketConnection` uses."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = list(sockets)
        self._reading = 0
        self._to_read = BLOCK_BYTES
        self._writing = 0
        self._to_write = BLOCK_BYTES
        self.ended = False
        """Whether the stream has ended, perhaps behind the bytes that were read."""
        self._failure: OSError | None = None  # how it ended behind them

    def fileno(self) -> int:
        """Return the descriptor of the socket whose turn it is to be read."""
        return self._sockets[self._reading].fileno()

    def writing_fileno(self) -> int:
        """Return the descriptor of the socket whose turn it is to be written."""
        return self._sockets[self._writing].fileno()

    def setblocking(self, blocks: bool) -> None:
        for sock in self._sockets:
            sock.setblocking(blocks)

    def getsockopt(self, level: int, name: int) -> int:
        """Return an option of the socket whose turn it is to be read."""
        return self._sockets[self._reading].getsockopt(level, name)

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        for sock in self._sockets:
            sock.setsockopt(level, name, value)

    def recv_into(self, buffer: memoryview | bytearray) -> int:
        """Read as much as is there: fewer bytes than asked for mean that no more has arrived."""
        if self._failure is not None:
            raise self._failure
        view = memoryview(buffer)
        count = 0
        while count < len(view):
            part = view[count : count + self._to_read]
            try:
                got = self._sockets[self._reading].recv_into(part)
            except BlockingIOError:
                if count:
                    return count
                raise
            except OSError as error:
                if not count:
                    raise
                got, self._failure = 0, error
            count += got
            self.ended = not got
            self._to_read -= got
            if not self._to_read:
                self._to_read = BLOCK_BYTES
                self._reading = (self._reading + 1) % len(self._sockets)
            elif got < len(part):  # also at the end of the stream: the next call finds it again
                break
        return count

    def send(self, data: memoryview | bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, parts: Sequence[memoryview | bytes]) -> int:
        """Send as much as the sockets take in their turns."""
        views = [byte_view(part) for part in parts]
        total = 0
        while views:
            batch, size, rest = _split(views, self._to_write)
            try:
                sent = self._sockets[self._writing].sendmsg(batch)
            except BlockingIOError:
                if total:
                    return total
                raise
            total += sent
            self._to_write -= sent
            if not self._to_write:
                self._to_write = BLOCK_BYTES
                self._writing = (self._writing + 1) % len(self._sockets)
            elif sent < size:
                break
            views = rest
        return total

    def shutdown(self, how: int) -> None:
        for sock in self._sockets:
            sock.shutdown(how)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def detach(self) -> int:
        """Return one descriptor, which the caller closes; the others are closed."""
        first, *others = self._sockets
        for sock in others:
            os.close(sock.detach())
        return first.detach()


def _split(views: list[memoryview], room: int) -> tuple[list[memoryview], int, list[memoryview]]:
    """Return the first ``room`` bytes of ``views``, their length, and the rest."""
    size = 0
    for number, view in enumerate(views):
        if size + view.nbytes > room:
            cut = room - size
            return [*views[:number], view[:cut]], room, [view[cut:], *views[number + 1 :]]
        size += view.nbytes
    return views, size, []
