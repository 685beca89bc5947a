"""A kernel without IPv6, such as one that was started with ``ipv6.disable=1``."""

from __future__ import annotations

import errno
import os
import socket

import pytest


class _SocketWithoutIPv6(socket.socket):
    def __init__(self, family: int = -1, *arguments: int, **more: int | None) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        super().__init__(family, *arguments, **more)  # type: ignore[arg-type]


def remove_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process make no IPv6 socket until the test ends."""
    monkeypatch.setattr(socket, "socket", _SocketWithoutIPv6)
