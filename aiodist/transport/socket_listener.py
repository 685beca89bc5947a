"""The accept loop shared by the transports over sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from aiodist.errors import EXHAUSTED, RAISE_THE_LIMIT
from aiodist.transport.base_transport import Listener, OnAccept
from aiodist.transport.callbacks import hand_over
from aiodist.transport.stream_socket import SocketConnection

logger = logging.getLogger("aiodist.transport")

BACKLOG = 4096
"""Connections that the kernel holds until they are accepted; the system may cap it."""

ACCEPTS_A_TURN = 64
PAUSE_SECONDS = 0.2
"""Seconds to wait before accepting again if the system is out of descriptors or memory."""

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
        sock.setblocking(False)
        self.address = address
        self._sock = sock
        self._on_accept = on_accept
        self._wrap = wrap
        self._on_closed = on_closed
        self._in_child = in_child
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._complained = False
        self._closed = False
        self._watch()

    def _watch(self) -> None:
        self._resume = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if self._closed:
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._pause(error)
                    return
                continue  # that connection ended before it was accepted
            try:
                connection = self._wrap(sock)
            except OSError:  # the connection ended while its options were being set
                sock.close()
                continue
            if connection is not None:
                hand_over(connection, self._on_accept, self.address)

    def _pause(self, error: OSError) -> None:
        # The connection stays in the backlog, so the socket stays readable. Without a pause the
        # loop would spin.
        if not self._complained:
            self._complained = True
            logger.warning(
                "cannot accept connections at %s: %s; trying again every %s s (%s)",
                self.address,
                error.strerror,
                PAUSE_SECONDS,
                RAISE_THE_LIMIT,
            )
        self._loop.remove_reader(self._sock.fileno())
        self._resume = self._loop.call_later(PAUSE_SECONDS, self._watch)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._on_closed is not None:
            self._on_closed()

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent keeps listening."""
        if not self._closed:
            self._closed = True
            os.close(self._sock.detach())
            if self._in_child is not None:
                self._in_child()
