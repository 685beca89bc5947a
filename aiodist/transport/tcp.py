"""TCP: addresses ``tcp://host:port`` and ``tcp://[ipv6]:port``."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError, remedy_for
from aiodist.transport.base_transport import Connection, OnAccept, Transport
from aiodist.transport.connecting import SocketsBeingConnected, connect_socket, within
from aiodist.transport.pacing import begin_unpaced
from aiodist.transport.socket_listener import BACKLOG, SocketListener, Wrap
from aiodist.transport.stream_socket import SocketConnection

SCHEME = "tcp"

_AddressInfo = tuple[int, int, int, str, Any]


class TcpTransport(Transport):
    """Streams between hosts (and on one).

    ``host``: the address or name of the one interface to listen on; the wildcards ``0.0.0.0``
    and ``::`` only where the caller asks for them by name.
    ``source_hosts``: local addresses that outgoing connections are bound to in turn, to spread
    streams over several interfaces; if no address has the right family, the system chooses.
    """

    scheme = SCHEME

    def __init__(self, host: str, *, source_hosts: Sequence[str] = ()) -> None:
        self._host = host
        self._source_hosts = list(source_hosts)
        self._turn = itertools.count()
        self._connecting = SocketsBeingConnected()

    async def listen(self, on_accept: OnAccept) -> SocketListener:
        return await self.listen_raw(on_accept, _wrap_accepted)

    async def listen_raw(
        self,
        on_accept: OnAccept,
        wrap: Wrap,
        on_closed: Callable[[], None] | None = None,
        in_child: Callable[[], None] | None = None,
    ) -> SocketListener:
        """As `listen`, with a ``wrap`` of the caller's; see `SocketListener`."""
        try:
            family, kind, protocol, _, where = (await _resolve(self._host, 0))[0]
        except socket.gaierror as error:
            raise DistNetworkError(
                f"cannot listen on {self._host!r}: the name does not resolve "
                f"({error.strerror}); pass an address or name of this host"
            ) from error
        try:
            sock = socket.socket(family, kind, protocol)
            try:
                begin_unpaced(sock)  # what is accepted has it from here
                sock.bind(where)
                sock.listen(BACKLOG)
                host, port = sock.getsockname()[:2]
                address = format_address(host, port, self.scheme)
                return SocketListener(sock, address, on_accept, wrap, on_closed, in_child)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise DistNetworkError(
                f"cannot listen on {self._host!r}: {error.strerror}; "
                + remedy_for(error, "pass an address or name of an interface of this host")
            ) from error

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        sock = await self.connected_socket(address, deadline)
        return SocketConnection(sock, SCHEME, address)

    async def connected_socket(self, address: str, deadline: Deadline) -> socket.socket:
        """As `connect`, without a connection around the socket, which is the caller's."""
        host, port = parse_address(address, self.scheme)
        host = on_own_link(host, self._host)
        try:
            async with within(deadline):
                return await self._connect(address, host, port)
        except TimeoutError as error:
            raise no_answer(address, deadline) from error

    def close_in_child(self) -> None:
        self._connecting.close_in_child()

    async def _connect(self, address: str, host: str, port: int) -> socket.socket:
        try:
            infos = await _resolve(host, port)
        except socket.gaierror as error:
            raise DistNetworkError(
                f"cannot connect to {address}: the host name {host!r} does not resolve "
                f"({error.strerror})"
            ) from error
        failure: OSError | None = None
        for family, kind, protocol, _, where in infos:
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                failure = error
                continue
            try:
                sock.setblocking(False)
                set_options(sock)
                begin_unpaced(sock)
                self._bind_source(sock)
                with self._connecting.hold(sock):
                    await connect_socket(sock, where)
                return sock
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        assert failure is not None  # getaddrinfo never answers with an empty list
        raise DistNetworkError(f"cannot connect to {address}: {_explain(failure)}") from failure

    def _bind_source(self, sock: socket.socket) -> None:
        wants_ipv6 = sock.family == socket.AF_INET6
        sources = [host for host in self._source_hosts if (":" in host) == wants_ipv6]
        if sources:
            source = sources[next(self._turn) % len(sources)]
            try:
                info = socket.getaddrinfo(
                    source, 0, sock.family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST
                )
                sock.bind(info[0][4])
            except OSError as error:
                raise OSError(
                    error.errno, f"cannot bind to the local address {source}: {error.strerror}"
                ) from error


def no_answer(address: str, deadline: Deadline) -> DistNetworkError:
    """Return the error of a connect that has taken all of ``deadline``."""
    return DistNetworkError(
        f"timed out connecting to {address} after {deadline.timeout} s: the host does not answer (is "
        "it up, and does a firewall allow this port?)"
    )


def on_own_link(host: str, own: str) -> str:
    """Return a peer's ``host``, with the interface of this rank's ``own`` address if it is link-local.

    Listeners tell their link-local address without an interface, which each host names in its own way.
    """
    interface = own.partition("%")[2]
    is_bare = host.startswith("fe80:") and "%" not in host
    return f"{host}%{interface}" if interface and is_bare else host


def format_address(host: str, port: int, scheme: str = SCHEME) -> str:
    """``tcp://host:port``, with brackets around an IPv6 address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def parse_address(address: str, wanted: str = SCHEME) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``. Raises InvalidUsageError."""
    scheme, found, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if scheme != wanted or not found or not colon or not host or not _is_port(port):
        raise InvalidUsageError(
            f"not a {wanted.upper()} address: {address!r}; write {wanted}://host:port, or "
            f"{wanted}://[address]:port for IPv6"
        )
    return host, int(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


async def _resolve(host: str, port: int) -> list[_AddressInfo]:
    """Addresses of ``host``, in the system's order. Raises socket.gaierror."""
    # A numeric address needs neither a thread nor a name server.
    with suppress(socket.gaierror, UnicodeError):
        return list(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        )
    loop = asyncio.get_running_loop()
    try:
        return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError as error:  # Python does not ask the system for an impossible name
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from None


def set_options(sock: socket.socket) -> None:
    """What every TCP stream of ours is set to. Raises OSError."""
    # Frames are written whole, so waiting to fill a segment only costs time.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that loses power sends nothing; the kernel finds out within about a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wrap_accepted(sock: socket.socket) -> SocketConnection:
    set_options(sock)
    host, port = sock.getpeername()[:2]
    return SocketConnection(sock, SCHEME, format_address(host, port))


def _explain(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "connection refused: no process listens there (any more)"
    if error.errno == errno.ETIMEDOUT:
        return "timed out: the host does not answer"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"unreachable: {error.strerror}; is there a route from this host?"
    return error.strerror or str(error)
