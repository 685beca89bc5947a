"""A kernel without IPv6, such as one that was started with ``ipv6.disable=1``."""

from __future__ import annotations

import errno
import os
import socket

import pytest


class _SocketWithoutIPv6(socket.socket):
    number = errno.EAFNOSUPPORT

    def __init__(self, family: int = -1, *arguments: int, **more: int | None) -> None:
        if family == socket.AF_INET6:
            raise OSError(self.number, os.strerror(self.number))
        super().__init__(family, *arguments, **more)  # type: ignore[arg-type]


class _SocketWithoutLeaveForIPv6(_SocketWithoutIPv6):
    number = errno.EACCES


def remove_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process make no IPv6 socket until the test ends."""
    monkeypatch.setattr(socket, "socket", _SocketWithoutIPv6)


def refuse_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be refused each IPv6 socket until the test ends, as AppArmor does."""
    monkeypatch.setattr(socket, "socket", _SocketWithoutLeaveForIPv6)
