"""Unix stream sockets between processes of one user on one host.

On Linux in the abstract namespace (``unix:@name``): nothing lies on disk, so a rank that is
killed leaves nothing behind. Elsewhere a path (``unix:/path``) in a private directory that goes
away with the listener. A process in another network namespace sees no abstract names of ours:
its connect is refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
from functools import partial

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError, remedy_for
from aiodist.transport.base_transport import Connection, OnAccept, Transport
from aiodist.transport.connecting import (
    SocketsBeingConnected,
    UnansweredError,
    connect_socket,
    within,
)
from aiodist.transport.socket_listener import BACKLOG, SocketListener, logger
from aiodist.transport.stream_socket import SocketConnection

SCHEME = "unix"

SEND_BUFFER = 2 << 20
"""Bytes; the kernel's default of 208 KiB costs a tenth of the throughput at 1 MiB a message.

TCP's buffers are left to the kernel: it tunes them, and figures of ours were never better.
"""


class UnixTransport(Transport):
    """Streams between processes of one host and one user; other users' processes are refused.

    ``abstract``: use Linux's abstract namespace; by default where there is one.
    """

    scheme = SCHEME

    def __init__(self, *, abstract: bool = sys.platform == "linux") -> None:
        self._abstract = abstract
        self._connecting = SocketsBeingConnected()

    async def listen(self, on_accept: OnAccept) -> SocketListener:
        directory = None
        try:
            sock = _new_socket()
            try:
                if self._abstract:
                    address = f"unix:@aiodist-{secrets.token_hex(16)}"
                else:
                    directory = tempfile.mkdtemp(prefix="aiodist-")  # made with mode 0700
                    address = f"unix:{directory}/socket"
                sock.bind(_parse(address))
                sock.listen(BACKLOG)
                wrap = partial(_wrap_accepted, address=address)
                remove = partial(_remove, directory) if directory is not None else None
                return SocketListener(sock, address, on_accept, wrap, remove)
            except BaseException:
                sock.close()
                if directory is not None:
                    _remove(directory)
                raise
        except OSError as error:
            raise DistNetworkError(
                f"cannot listen on a Unix socket: {error.strerror or error}; "
                + remedy_for(error, "use the tcp transport (AIODIST_TRANSPORT=tcp)")
            ) from error

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        path = _parse(address)
        try:
            sock = _new_socket()
            try:
                sock.setblocking(False)
                async with within(deadline):
                    with self._connecting.hold(sock):
                        await connect_socket(sock, path)
                uid = _peer_uid(sock)
                if uid is not None and uid != os.geteuid():
                    raise DistNetworkError(
                        f"refused to talk to {address}: it belongs to user {uid}, and this "
                        f"process runs as user {os.geteuid()}"
                    )
                return SocketConnection(sock, SCHEME, address)
            except BaseException:
                sock.close()
                raise
        except TimeoutError as error:
            raise UnansweredError(
                f"timed out connecting to {address} after {deadline.timeout} s: the process "
                "there accepts no connections (is it stopped, or its loop blocked?)"
            ) from error
        except OSError as error:
            raise DistNetworkError(f"cannot connect to {address}: {_explain(error)}") from error

    def close_in_child(self) -> None:
        self._connecting.close_in_child()


def _new_socket() -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise DistNetworkError(
            "this system has no Unix sockets; use the tcp transport (AIODIST_TRANSPORT=tcp)"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return sock


def _parse(address: str) -> str:
    """The socket's path; an abstract name starts with a zero byte. Raises InvalidUsageError."""
    scheme, _, path = address.partition(":")
    if scheme == SCHEME and len(path) > 1:
        if path[0] == "@":
            return "\0" + path[1:]
        if path[0] == "/":
            return path
    raise InvalidUsageError(
        f"not a Unix socket address: {address!r}; write unix:/path or unix:@name"
    )


def _peer_uid(sock: socket.socket) -> int | None:
    """The user on the other side, None where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    layout = "3i"
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(layout))
    return int(struct.unpack(layout, raw)[1])


def _wrap_accepted(sock: socket.socket, address: str) -> SocketConnection | None:
    uid = _peer_uid(sock)
    if uid is not None and uid != os.geteuid():
        logger.warning("refused a connection to %s from a process of user %s", address, uid)
        sock.close()
        return None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return SocketConnection(sock, SCHEME, f"a client of {address}")


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _explain(error: OSError) -> str:
    if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
        return (
            "connection refused: no process listens there (any more), or the listener is in another "
            "network namespace or file system"
        )
    return error.strerror or str(error)
