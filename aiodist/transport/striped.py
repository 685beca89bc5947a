"""Several TCP streams as one: addresses ``stripes://host:port,host:port``.

For links that one stream does not fill: a provider limits each stream, the round trip is long, or a
host has several interfaces. An address has one entry for each interface of the listener. Stream i
goes from the i-th own interface to the i-th entry, both taken in turn. The connecting side chooses
the number of streams: each stream begins with the bundle's name, its own number, and how many there
are.

A bundle is one connection: it is open when all streams are, and lost when one of them is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import cast

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.transport.base_transport import Connection, Listener, OnAccept, Transport
from aiodist.transport.bundle import Bundle
from aiodist.transport.callbacks import hand_over
from aiodist.transport.connecting import SocketsBeingConnected, readable, within
from aiodist.transport.pending_handshakes import PendingHandshakes
from aiodist.transport.stream_socket import SocketConnection
from aiodist.transport.tcp import TcpTransport, set_options

SCHEME = "stripes"

MAX_STREAMS = 64

_HELLO = struct.Struct("<16sHH")  # the bundle's name, the stream's number, how many there are

_MOST_HANDSHAKES = 1024
"""The most streams that may be in their greeting with one listener at the same moment."""


class StripedTransport(Transport):
    """Bundles of ``streams`` TCP streams each.

    ``hosts``: the addresses of this host's interfaces to use in turn. Raises InvalidUsageError for
    an impossible number of streams.
    """

    scheme = SCHEME

    def __init__(self, hosts: Sequence[str], streams: int) -> None:
        if not 1 <= streams <= MAX_STREAMS:
            raise InvalidUsageError(f"{streams} streams to a rank: give 1 to {MAX_STREAMS}")
        self._streams = streams
        self._connecting = SocketsBeingConnected()
        several = len(hosts) > 1
        self._ways = [TcpTransport(host, source_hosts=[host] if several else ()) for host in hosts]

    async def listen(self, on_accept: OnAccept) -> Listener:
        reception = _Reception(on_accept)
        listeners: list[Listener] = []
        try:
            for way in self._ways:
                listener = await way.listen_raw(on_accept, reception.wrap)
                listeners.append(listener)  # all are closed if one fails
        except BaseException:
            for each in listeners:
                await each.close()
            raise
        return _Listener(listeners, reception)

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        scheme, found, rest = address.partition("://")
        if scheme != SCHEME or not found:
            raise InvalidUsageError(
                f"not an address of bundles: {address!r}; write {SCHEME}://host:port, and more "
                "places behind commas"
            )
        places = [f"tcp://{place}" for place in rest.split(",")]
        name = os.urandom(16)
        sockets: list[socket.socket] = []
        try:
            with ExitStack() as made:  # all are closed if one fails
                # One limit, of the time in which the loop turns.
                async with within(deadline), AsyncExitStack() as held:
                    for number in range(self._streams):
                        way = self._ways[number % len(self._ways)]
                        place = places[number % len(places)]
                        sock = await way.connected_socket(place, Deadline.never())
                        made.callback(sock.close)
                        sockets.append(sock)
                        held.enter_context(self._connecting.hold(sock))
                for number, sock in enumerate(sockets):
                    # A few bytes fit into every new stream's buffer.
                    sock.send(_HELLO.pack(name, number, self._streams))
                made.pop_all()
        except TimeoutError as error:
            raise DistNetworkError(
                f"cannot connect to {address}: of {self._streams} streams, number {len(sockets)} "
                f"timed out after {deadline.timeout} s: the host does not answer (is it up, and does "
                "a firewall allow these ports?)"
            ) from error
        except OSError as error:
            raise DistNetworkError(
                f"cannot connect to {address}: it hung up at once: {error.strerror}"
            ) from error
        except DistNetworkError as error:
            raise DistNetworkError(
                f"cannot connect to {address}: of {self._streams} streams, number "
                f"{len(sockets)} failed: {error}"
            ) from error
        return StripedConnection(Bundle(sockets), address)

    def close_in_child(self) -> None:
        self._connecting.close_in_child()
        for way in self._ways:
            way.close_in_child()


class StripedConnection(SocketConnection):
    """One end of a bundle."""

    def __init__(self, bundle: Bundle, peer_name: str) -> None:
        super().__init__(cast(socket.socket, bundle), SCHEME, peer_name)
        self._bundle = bundle

    def _on_readable(self) -> None:
        super()._on_readable()
        reads = self._receiver is not None and not self._end_of_input
        if reads and (fd := self._bundle.fileno()) != self._fd:  # its turn has come
            self._loop.remove_reader(self._fd)
            self._fd = fd
            self._loop.add_reader(fd, self._on_readable)

    def _ends_behind(self) -> bool:
        return self._bundle.ended or super()._ends_behind()

    def _watch_writable(self) -> None:
        if not self._is_closed() and (fd := self._bundle.writing_fileno()) != self._out:
            if self._wants_writer:
                self._wants_writer = False
                self._loop.remove_writer(self._out)
            self._out = fd
        super()._watch_writable()


class _Listener(Listener):
    """The listeners of all interfaces as one."""

    def __init__(self, listeners: Sequence[Listener], reception: _Reception) -> None:
        places = [listener.address.partition("://")[2] for listener in listeners]
        self.address = f"{SCHEME}://{','.join(places)}"
        self._listeners = listeners
        self._reception = reception
        reception.pending.who = f"the listener at {self.address}"

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        self._reception.close()

    def close_in_child(self) -> None:
        for listener in self._listeners:
            listener.close_in_child()
        self._reception.close_in_child()


class _Reception:
    """Accepted streams whose bundle is not complete."""

    def __init__(self, on_accept: OnAccept) -> None:
        self._on_accept = on_accept
        self.pending: PendingHandshakes[_PendingConnection] = PendingHandshakes(
            "a listener", _MOST_HANDSHAKES
        )
        self._bundles: dict[tuple[bytes, int], dict[int, _PendingConnection]] = {}

    def wrap(self, sock: socket.socket) -> None:
        set_options(sock)
        sock.setblocking(False)
        host, port = sock.getpeername()[:2]
        incoming = _PendingConnection(sock, f"{SCHEME}://{host}:{port}", self)
        self.pending.admit(incoming, incoming.name)

    def greeted(self, incoming: _PendingConnection, hello: bytes) -> None:
        """Add ``incoming``, which has told its bundle and number."""
        name, number, count = _HELLO.unpack(hello)
        which = name, count
        if number in self._bundles.get(which, ()) or not number < count <= MAX_STREAMS:
            self.refused(incoming, DistNetworkError(f"{incoming.name} is no stream of a bundle"))
            return
        bundle = self._bundles.setdefault(which, {})
        bundle[number] = incoming
        incoming.bundle = which
        if len(bundle) < count:
            return
        del self._bundles[which]
        for each in bundle.values():
            self.pending.proven(each)
        sockets = [sock for _, sock in sorted((n, each.sock) for n, each in bundle.items())]
        connection = StripedConnection(Bundle(sockets), bundle[0].name)
        hand_over(connection, self._on_accept, incoming.name)

    def refused(self, incoming: _PendingConnection, error: BaseException) -> None:
        self.pending.rejected(incoming, error)
        # Its bundle will never be complete: its other streams are dropped after their timeout.
        self._bundles.pop(incoming.bundle, None)
        incoming.cancel()

    def close(self) -> None:
        self.pending.close(_PendingConnection.cancel)
        self._bundles.clear()

    def close_in_child(self) -> None:
        for incoming in self.pending:
            os.close(incoming.sock.detach())


class _PendingConnection:
    """A stream that has not yet told its number, or whose bundle is not complete."""

    def __init__(self, sock: socket.socket, name: str, reception: _Reception) -> None:
        self.sock = sock
        self.name = name
        self.bundle = b"", 0
        self._reception = reception
        self._task = asyncio.get_running_loop().create_task(self._greet())

    async def _greet(self) -> None:
        hello = b""
        try:
            while len(hello) < _HELLO.size:
                await readable(self.sock)
                got = self.sock.recv(_HELLO.size - len(hello))
                if not got:
                    raise OSError(0, "it closed the connection")
                hello += got
        except OSError as error:
            why = DistNetworkError(f"{self.name} did not say which stream it is: {error.strerror}")
            self._reception.refused(self, why)
        else:
            self._reception.greeted(self, hello)

    def abort(self, error: BaseException) -> None:
        self._reception.refused(self, error)

    def cancel(self) -> None:
        self._task.cancel()
        # Once it is closed, another socket may get its descriptor, which the task still watches.
        self._task.add_done_callback(lambda _: self.sock.close())
