"""The listener shared by the transports over sockets."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from aiodist.accept_loop import AcceptLoop
from aiodist.transport.base_transport import Listener, OnAccept
from aiodist.transport.callbacks import hand_over
from aiodist.transport.stream_socket import SocketConnection

logger = logging.getLogger("aiodist.transport")

BACKLOG = 4096
"""Connections that the kernel holds until they are accepted; the system may cap it."""

Wrap = Callable[[socket.socket], SocketConnection | None]


class SocketListener(Listener):
    """Accept connections on a bound and listening socket, which it owns.

    ``wrap`` makes a connection of an accepted socket, or returns None after refusing it.
    ``on_closed`` releases what else belongs to the address (a file, a directory). ``in_child`` releases
    in a forked child what ``wrap`` has not made a connection of yet.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        on_accept: OnAccept,
        wrap: Wrap,
        on_closed: Callable[[], None] | None = None,
        in_child: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._on_accept = on_accept
        self._wrap = wrap
        self._on_closed = on_closed
        self._in_child = in_child
        self._closed = False
        self._accepting = AcceptLoop(sock, address, self._on_socket, logger)

    def _on_socket(self, sock: socket.socket) -> None:
        try:
            connection = self._wrap(sock)
        except OSError:  # the connection ended while its options were being set
            sock.close()
            return
        if connection is not None:
            hand_over(connection, self._on_accept, self.address)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._accepting.close()
        if self._on_closed is not None:
            self._on_closed()

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent keeps listening."""
        if not self._closed:
            self._closed = True
            self._accepting.close_in_child()
            if self._in_child is not None:
                self._in_child()
