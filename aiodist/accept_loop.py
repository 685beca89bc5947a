"""Accept the connections of a listening socket, also if the process is out of descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from aiodist.errors import EXHAUSTED, remedy_for

ACCEPTS_A_TURN = 64
PAUSE_SECONDS = 0.2
"""Seconds to wait before accepting again if the system lacks descriptors or memory, or refuses the call."""


class AcceptLoop:
    """Give each connection of the listening ``sock`` to ``on_socket``, until closed. It owns ``sock``.

    If no descriptor is left, or the system refuses the call, it warns once, in ``logger``, and tries again
    after a pause.
    `asyncio.start_server` logs a hundred tracebacks at each try.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        on_socket: Callable[[socket.socket], None],
        logger: logging.Logger,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._address = address
        self._on_socket = on_socket
        self._logger = logger
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._told: set[int | None] = set()  # the errors that were logged
        self._closed = False
        self._watch()

    def close(self) -> None:
        """Accept no more and release the address. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent goes on accepting. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self._sock.detach())

    def _watch(self) -> None:
        self._resume = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        failed: OSError | None = None
        accepted = False
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
                failed = error  # that connection ended before it was accepted
            else:
                accepted = True
                self._on_socket(sock)
        if failed is not None and not accepted:  # so often in a row: the system refuses the call
            self._pause(failed)

    def _pause(self, error: OSError) -> None:
        # The connection stays in the backlog, so the socket stays readable. Without a pause the
        # loop would spin.
        if error.errno not in self._told:
            self._told.add(error.errno)
            self._logger.warning(
                "cannot accept connections at %s: %s; trying again every %s s (%s)",
                self._address,
                error.strerror,
                PAUSE_SECONDS,
                remedy_for(error, "see what this process may do"),
            )
        self._loop.remove_reader(self._sock.fileno())
        self._resume = self._loop.call_later(PAUSE_SECONDS, self._watch)
