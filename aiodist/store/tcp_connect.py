"""Connect the TCP store's client: name, address, attempts, greeting."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from contextlib import suppress

from aiodist.credentials import Certificates, tls_refusal
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError, remedy_for
from aiodist.store.addresses import Address, resolve, send_at_once, show
from aiodist.store.tcp_greeting import (
    MAGIC,
    Learn,
    StrangerError,
    ask_server,
    describe_stranger,
    greet_server,
)
from aiodist.store.waiting import pauses

_log = logging.getLogger("aiodist.store")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_REMEDY = "see whether rank 0, or the launcher, runs there and uses this port"
_PERMISSIONS = "see what this process may do"
_ATTEMPT_SECONDS = 5.0
_GREETING_SECONDS = 15.0
_MUTE_ATTEMPTS = 5
"""Attempts in a row that are closed without data before the other side counts as a stranger.
One attempt is not enough: the server of the last job on this port may just be closing."""

_REFUSED_ATTEMPTS = 5
"""Attempts in a row that the system refuses before a warning. A filter may begin to permit them."""

_REFUSALS = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT})


class _TryAgain(Exception):
    """A failed attempt that may succeed later. ``mute``: closed without data."""

    def __init__(self, why: str, *, mute: bool = False) -> None:
        super().__init__(why)
        self.mute = mute


async def connect(
    host: str,
    port: int,
    deadline: Deadline,
    secret: bytes,
    certificates: Certificates | None,
    *,
    once: bool = False,
    learn: Learn | None = None,
) -> Stream:
    """Return a greeted connection. Errors as of `TcpStore.connect`; after a failure nothing is open."""
    context = None if certificates is None else certificates.client_context()
    addresses = await resolve(host, port, deadline)
    mute = refused = 0
    for pause in pauses(longest=1.0, first=0.01):
        failures: list[_TryAgain] = []
        for address in addresses:
            try:
                return await _attempt(host, port, address, deadline, secret, context, learn)
            except _TryAgain as failure:
                failures.append(failure)
        mute = mute + 1 if any(failure.mute for failure in failures) else 0
        causes = [failure.__cause__ for failure in failures]
        refused = refused + 1 if all(map(_is_refusal, causes)) else 0
        if refused == _REFUSED_ATTEMPTS:
            _log.warning(
                "cannot connect to the store at %s: %s; trying again (%s)",
                show(host, port),
                "; ".join(dict.fromkeys(map(str, failures))),
                _PERMISSIONS,
            )
        if mute == _MUTE_ATTEMPTS and context is not None:
            raise _no_tls(host, port, "it closes the connection, as one that trusts others does")
        if mute == _MUTE_ATTEMPTS:
            raise _stranger(host, port, StrangerError(describe_stranger(b""), first=b""))
        if once or deadline.remaining() <= pause:
            # The reason of an address that was reached says most.
            reasons = "; ".join(dict.fromkeys(str(failure) for failure in failures))
            remedy = _PERMISSIONS if _is_refusal(causes[-1]) else _REMEDY
            raise StoreTimeoutError(
                f"no store answered at {show(host, port)} within {deadline.timeout:g} s "
                f"({reasons}); {remedy_for(causes[-1], remedy)}"
            ) from causes[-1]
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: pauses never end")


async def _attempt(
    host: str,
    port: int,
    address: Address,
    deadline: Deadline,
    secret: bytes,
    context: ssl.SSLContext | None,
    learn: Learn | None,
) -> Stream:
    family, socket_address = address
    try:
        async with asyncio.timeout(min(_ATTEMPT_SECONDS, max(0.1, deadline.remaining()))):
            sock = await _open(family, socket_address)
    except TimeoutError:
        raise _TryAgain(f"{socket_address[0]} did not answer") from None
    except OSError as error:
        raise _TryAgain(f"{socket_address[0]}: {_reason(error)}") from error
    writer: asyncio.StreamWriter | None = None
    try:
        try:
            async with asyncio.timeout(min(_GREETING_SECONDS, max(0.1, deadline.remaining()))):
                reader, writer = await _stream(sock, context)
                if learn is not None:
                    secret = await learn(await ask_server(reader, writer))
                await greet_server(reader, writer, secret)
        except TimeoutError:
            raise _TryAgain(
                f"{socket_address[0]} accepted the connection and said nothing: its process is busy, or "
                "does not get its connections (its log says why, such as too few open files), or is no "
                "aiodist store (torch's TCPStore is as silent)"
            ) from None
        return reader, writer
    except BaseException as error:
        if writer is not None:
            writer.transport.abort()
        if isinstance(error, ssl.SSLError):
            raise _no_tls(host, port, tls_refusal(error)) from error
        if isinstance(error, StrangerError) and error.first:
            raise _stranger(host, port, error) from None
        if isinstance(error, OSError | asyncio.IncompleteReadError | StrangerError):
            raise _TryAgain(f"{socket_address[0]} closed the connection", mute=True) from error
        raise


async def _stream(sock: socket.socket, context: ssl.SSLContext | None) -> Stream:
    """Return a stream over ``sock``. If it fails or is cancelled, ``sock`` is shut down."""
    try:
        if context is None:
            return await asyncio.open_connection(sock=sock)
        return await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="", ssl_shutdown_timeout=1.0
        )
    except BaseException:
        # asyncio has the socket and closes it, in later turns if TLS was up. Closed here, its descriptor
        # would be the next socket's while asyncio still takes it for this one's.
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        raise


def _no_tls(host: str, port: int, why: str) -> DistStoreError:
    return DistStoreError(
        f"the store at {show(host, port)} cannot be reached by TLS: {why}; give "
        "all ranks valid certificates of one authority (AIODIST_TLS_CERT, AIODIST_TLS_KEY, "
        "AIODIST_TLS_CA), or none"
    )


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether the system refuses a call that a connection takes."""
    return isinstance(error, OSError) and error.errno in _REFUSALS


async def _open(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        send_at_once(sock)
        _keep_alive(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
        if sock.getsockname() == sock.getpeername():
            # On one host the kernel may pick the target port as this side's own and connect the
            # socket to itself. It would also block the server's port.
            raise ConnectionRefusedError("Connection refused")
    except BaseException:
        sock.close()
        raise
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Enable keep-alive, so that the loss of the server's host is noticed within about a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: OSError) -> str:
    # asyncio's own text repeats the address and leaves out what went wrong.
    return os.strerror(error.errno) if error.errno else str(error)


def _stranger(host: str, port: int, error: StrangerError) -> DistStoreError:
    if error.first.startswith(MAGIC):
        return DistStoreError(f"the store at {show(host, port)} cannot be used: {error}")
    return DistStoreError(
        f"what answers at {show(host, port)} is no aiodist store: {error}; check MASTER_ADDR and "
        "MASTER_PORT (or the init_method), and that rank 0 uses aiodist too"
    )
