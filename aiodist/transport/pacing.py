"""TCP's congestion control: what stays within a host is not paced.

A congestion control that paces (BBR) measures what a network bears, and sends by a timer. Between two
processes there is nothing to measure, and the timer takes time. A socket that has once been paced stays
so under any other control, so a stream begins without: by Reno, which every system has and every
user may choose. Once it is known to leave the host, the system's own choice takes its place.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Protocol

_OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)
_PLAIN = b"reno"
_LONGEST_NAME = 16


class Socket(Protocol):
    """What there is to set."""

    def setsockopt(self, level: int, name: int, value: bytes, /) -> None: ...


def begin_unpaced(sock: Socket) -> None:
    """Switch a TCP socket's pacing off before it connects or listens; accepted sockets inherit it."""
    if _OPTION is not None:
        with suppress(OSError):  # a system without Reno, if there is one: then as it will have it
            sock.setsockopt(socket.IPPROTO_TCP, _OPTION, _PLAIN)


def go_by_the_system(sock: Socket) -> None:
    """Set a TCP socket's congestion control to the system's default."""
    if _OPTION is not None:
        with suppress(OSError):  # not a TCP socket, or it has just broken: reading finds out
            with socket.socket() as fresh:
                chosen = fresh.getsockopt(socket.IPPROTO_TCP, _OPTION, _LONGEST_NAME)
            sock.setsockopt(socket.IPPROTO_TCP, _OPTION, chosen.rstrip(b"\0"))
