"""The server of the TCP store: one process holds the keys, the others connect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
from typing import Any, Self

from aiodist.accept_loop import AcceptLoop
from aiodist.credentials import Certificates, secret_and_certificates
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.store.addresses import listen, resolve, show
from aiodist.store.memory_store import MemoryStore
from aiodist.store.table import KeyTable
from aiodist.store.tcp_greeting import Seal, StrangerError, answer_client, await_proof
from aiodist.store.tcp_requests import Client
from aiodist.store.tcp_wire import MAX_FRAME, close_inherited, close_stream, read_message
from aiodist.turning_timer import turning_timeout
from aiodist.unpicklable import Unpicklable

_log = logging.getLogger("aiodist.store")

_GREETING_SECONDS = 10.0
"""For a connection that has said nothing valid yet."""

_PROOF_SECONDS = 3600.0
"""For the proof of a client that has greeted as one of aiodist: it may compute. Once it has sent its
proof, it takes the end of the connection for the end of this server."""

_FLUSH_SECONDS = 0.5

_SPARE = 64
_MANY = 1024
"""Clients that may be greeting at the same moment if the expected number is unknown."""

_MAX_LOGGED = 16
"""Lines about clients that were turned away, so that repeated connections do not fill the disk."""


class TcpStoreServer(Unpicklable):
    """Serve a store at ``host``:``port`` until closed. Make it with `start`.

    A client must greet as an aiodist client that knows the job's secret. Others are refused with
    one line in the log ``aiodist.store``, which has 16 such lines at most. Usable as an async
    context manager.
    """

    def __init__(self, *_: object, **__: object) -> None:
        """Raise TypeError: `start` makes a server."""
        raise TypeError(
            "a TcpStoreServer has to listen: make it with `await TcpStoreServer.start(host, port)`"
        )

    def _begin(
        self,
        host: str,
        port: int,
        secret: bytes,
        expected_clients: int | None,
        stays_open: bool,
        max_frame: int,
        seal: Seal | None,
        tls: dict[str, Any],
    ) -> Self:
        """Initialize this server, which does not listen yet, and return it."""
        self.host = host
        self.port = port
        self._secret = secret
        self._seal = seal
        self._enough_clients = (
            math.inf if expected_clients is None or stays_open else expected_clients
        )
        self._max_frame = max_frame
        self.table = KeyTable()
        """The keys that are served, and the waits of the clients for others."""
        self._listeners: list[AcceptLoop] = []
        self._tls = tls
        self._connecting: set[asyncio.Task[None]] = set()  # a loop keeps no task alive
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._clients: dict[Client, None] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Those that have not greeted, by age."""
        self._crowd = _SPARE + 2 * (_MANY if expected_clients is None else expected_clients)
        self._crowded = False
        self._logged = 0
        self._closed = False
        return self

    @classmethod
    async def start(
        cls,
        host: str,
        port: int = 0,
        *,
        secret: bytes | None = None,
        expected_clients: int | None = None,
        stays_open: bool = False,
        max_frame: int = MAX_FRAME,
        certificates: Certificates | None = None,
        seal: Seal | None = None,
    ) -> TcpStoreServer:
        """Listen at an address of this machine, and at no other address.

        Args:
            host: An address or a name of this machine. "0.0.0.0" or "::" asks for every address
                of the family.
            port: 0 takes a free one, see the attribute ``port``.
            secret: The job's; with an empty one every aiodist client may connect. None is that of
                AIODIST_SECRET or AIODIST_SECRET_FILE, with the certificates of AIODIST_TLS_CERT
                and its like.
            expected_clients: The server stops accepting once that many are connected at the same
                time. So the port is free for the next job's server, and no client of the next job
                meets this one.
            stays_open: Go on accepting all the same, until `stop_accepting`: a client may go and
                come again.
            max_frame: Bytes of the longest message.
            certificates: Clients must connect by TLS, with a certificate of the same authority.
            seal: The secret as a credential, for clients that ask for it; None tells them
                nothing.

        Returns:
            The server.

        Raises:
            DistStoreError: The name does not resolve, the port is in use, or the address is that
                of another machine.
        """
        secret, certificates = secret_and_certificates(secret, certificates, os.environ)
        tls: dict[str, Any] = {}
        if certificates is not None:
            tls["ssl"] = certificates.server_context()
            tls["ssl_handshake_timeout"] = _GREETING_SECONDS
            tls["ssl_shutdown_timeout"] = _FLUSH_SECONDS
        addresses = await resolve(host, port, Deadline.never(), to_listen=True)
        sockets = listen(host, port, addresses)
        port = sockets[0].getsockname()[1]
        server = cls.__new__(cls)._begin(
            host, port, secret, expected_clients, stays_open, max_frame, seal, tls
        )
        try:
            for sock in sockets:
                server._listeners.append(AcceptLoop(sock, server.address, server._on_socket, _log))
        except BaseException:  # the system does not watch one of them
            for sock in sockets[len(server._listeners) :]:
                sock.close()
            server.stop_accepting()
            raise
        server._enough()
        return server

    @property
    def address(self) -> str:
        """``host:port``, for messages."""
        return show(self.host, self.port)

    @property
    def clients(self) -> int:
        """Return how many clients are connected."""
        return len(self._clients)

    def store(self) -> MemoryStore:
        """Return a store over the server's keys for its own process. It lives as long as the server."""
        return MemoryStore(self.table)

    def stop_accepting(self) -> None:
        """Release the port; connected clients stay. Idempotent."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    async def close(self) -> None:
        """Send the pending answers and a goodbye, then drop all clients and the port.

        The wills of the clients are dropped. Idempotent; never raises.
        """
        self._closed = True
        self.stop_accepting()
        for client in self._clients:
            client.close_with_goodbye()
        for writer in self._tasks.values():
            close_stream(writer)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_FLUSH_SECONDS)
            for task in late:
                self._tasks[task].transport.abort()
                task.cancel()
            if late:
                await asyncio.wait(late)

    def close_in_child(self) -> None:
        """Release inherited sockets in a forked child; the parent goes on serving."""
        close_inherited(self._tasks.values())
        for listener in self._listeners:
            listener.close_in_child()

    async def __aenter__(self) -> TcpStoreServer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _on_socket(self, sock: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._open(sock))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, sock: socket.socket) -> None:
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)
        with contextlib.suppress(OSError):  # the client has left, or its TLS handshake failed
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, sock, **self._tls
            )

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:  # it was accepted before the end, and its handshake took until now
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = writer
        self._strangers[writer] = None
        if len(self._strangers) > self._crowd:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)
            oldest.transport.abort()
            if not self._crowded:
                self._crowded = True
                _log.warning(
                    "store at %s is besieged: more than %d connections at once that have not "
                    "greeted; the oldest are dropped (see who can reach this port)",
                    self.address,
                    self._crowd,
                )
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = _peer_name(writer)
        client = Client(self.table, writer, self._max_frame)
        try:
            greeted = await self._greet(reader, writer, name)
            self._strangers.pop(writer, None)
            if greeted:
                self._clients[client] = None
                self._enough()
                while True:
                    client.handle(await read_message(reader, self._max_frame))
                    # A client that does not read its answers gets no more of them.
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has left; the store does not judge that
        except DistStoreError as error:
            self._log_event(f"dropped the client {name}: {error}")
            writer.transport.abort()
        finally:
            self._strangers.pop(writer, None)
            self._clients.pop(client, None)
            client.drop()
            close_stream(writer)
            # Python destroys this in a forked child, which has no loop to wait with.
            if not isinstance(sys.exception(), GeneratorExit):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> bool:
        what, seconds = "greet", _GREETING_SECONDS
        try:
            async with turning_timeout(seconds):
                expected = await answer_client(reader, writer, self._secret, self._seal)
            what, seconds = "show that it knows this job's secret", _PROOF_SECONDS
            async with turning_timeout(seconds):
                await await_proof(reader, expected)
        except TimeoutError:
            why = f"it did not {what} within {seconds:g} s"
        except StrangerError as error:
            if not error.first:
                return False  # the client may have given up, or this server may be closing
            why = str(error)
        else:
            return True
        self._log_event(f"refused a connection from {name}, which is no client of this job: {why}")
        return False

    def _log_event(self, text: str) -> None:
        """Log a line about a client that was turned away, if there were not too many."""
        self._logged += 1
        if self._logged <= _MAX_LOGGED:
            last = "; no more of them will be logged" if self._logged == _MAX_LOGGED else ""
            _log.warning("store at %s: %s%s", self.address, text, last)

    def _enough(self) -> None:
        if len(self._clients) >= self._enough_clients:
            self.stop_accepting()


def _peer_name(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return show(peer[0], peer[1]) if peer else "an unknown address"
