"""Resolve names and open listening sockets, with errors that say what to change."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import (
    EXHAUSTED,
    RAISE_THE_LIMIT,
    DistStoreError,
    InvalidUsageError,
    StoreTimeoutError,
)
from aiodist.store.waiting import limit

_BACKLOG = 1024
_TRIES = 8

Address = tuple[socket.AddressFamily, Any]
"""An address family and the address as its sockets take it."""


def show(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(
    host: str, port: int, deadline: Deadline, *, to_listen: bool = False
) -> list[Address]:
    """Return the addresses of ``host``, an IPv4 or IPv6 address or a name, in the system's order.

    Raises DistStoreError at once if there is no address, StoreTimeoutError if the look-up takes too
    long, InvalidUsageError for an impossible port or an empty name.
    """
    if not isinstance(port, int) or not (0 if to_listen else 1) <= port <= 65535:
        raise InvalidUsageError(f"port must be a number up to 65535, not {port!r}")
    if not host:
        # To the system an empty name means every address, which the caller must ask for explicitly.
        raise InvalidUsageError("host must be an address or a name, not empty")
    loop, flags = asyncio.get_running_loop(), socket.AI_PASSIVE if to_listen else 0
    try:
        try:  # a numeric address needs no thread
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
            )
        except OSError:
            async with asyncio.timeout(limit(deadline)):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except TimeoutError:
        raise StoreTimeoutError(
            f"the name look-up of {host!r} took longer than {deadline.timeout:g} s; use an address "
            "instead of the name, or see to the host's DNS configuration"
        ) from None
    except (OSError, UnicodeError, RuntimeError) as error:  # the last one if no thread can start
        raise DistStoreError(
            f"the host name {host!r} does not resolve to an address ({_reason(error)}); check its "
            "spelling (MASTER_ADDR or the init_method), or use an address"
        ) from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def listen(host: str, port: int, addresses: list[Address]) -> list[socket.socket]:
    """Return sockets that listen at each of ``addresses`` of ``host``, on one port (0: any free one).

    An address whose family this machine lacks is skipped while another one works. If it raises
    DistStoreError, it leaves nothing open.
    """
    for attempt in range(_TRIES):
        sockets: list[socket.socket] = []
        failed: OSError | None = None
        chosen = port
        for family, address in addresses:
            try:
                sock = _listen_at(family, (address[0], chosen, *address[2:]))
            except OSError as error:
                failed = error
                if error.errno == errno.EADDRINUSE:
                    break
            else:
                sockets.append(sock)
                chosen = sock.getsockname()[1]
        if failed is None or (sockets and failed.errno != errno.EADDRINUSE):
            return sockets
        for sock in sockets:
            sock.close()
        # A free port of one family may be taken in the other one: then draw again.
        if port or failed.errno != errno.EADDRINUSE or attempt == _TRIES - 1:
            raise _cannot_listen(host, port, failed)
    raise AssertionError("unreachable: the last attempt returned or raised")


def send_at_once(sock: socket.socket) -> None:
    """Let ``sock`` send a frame although the other side has not acknowledged the one before it.

    Otherwise a request behind one that waits for keys is sent only after the other side's delayed
    acknowledgement, which takes 40 ms. asyncio does this only for sockets that were made with the
    number of the protocol.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listen_at(family: socket.AddressFamily, address: Any) -> socket.socket:
    # It sets SO_REUSEADDR, as connections of the last job may linger on the port.
    sock = socket.create_server(address, family=family, backlog=_BACKLOG)
    sock.setblocking(False)
    send_at_once(sock)  # the sockets of its connections inherit it
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> DistStoreError:
    where = show(host, port)
    if error.errno == errno.EADDRINUSE:
        why = (
            f"port {port} is in use on {host}, perhaps by another job: choose another one "
            "(MASTER_PORT, --master_port, or the number in tcp://host:port); or by another process "
            "of this job that was given rank 0, too: give each process a rank of its own"
        )
    elif error.errno == errno.EADDRNOTAVAIL:
        why = (
            f"{host} is no address of this machine; rank 0 must run on the host that MASTER_ADDR "
            "(or tcp://host:port) names"
        )
    elif error.errno == errno.EACCES:
        why = "this user may not open that port; choose one above 1023"
    elif error.errno in EXHAUSTED:
        why = f"{_reason(error)}; {RAISE_THE_LIMIT}"
    else:
        why = _reason(error)
    return DistStoreError(f"cannot serve a store at {where}: {why}")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
