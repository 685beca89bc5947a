"""A system without IPv6: a kernel that was started with ``ipv6.disable=1``, or a filter that refuses it."""

from __future__ import annotations

import errno
import os
import socket

import pytest

REFUSALS = [errno.EAFNOSUPPORT, errno.EACCES, errno.ENOSYS]
"""How an IPv6 socket is refused: by a kernel without IPv6, by AppArmor, by a filter of system calls."""


def remove_ipv6(monkeypatch: pytest.MonkeyPatch, number: int = errno.EAFNOSUPPORT) -> None:
    """Let this process make no IPv6 socket until the test ends. The error has this ``number``."""

    class SocketWithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: int, **more: int | None) -> None:
            if family == socket.AF_INET6:
                raise OSError(number, os.strerror(number))
            super().__init__(family, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", SocketWithoutIPv6)
