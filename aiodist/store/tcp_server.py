"""The server of the TCP store: one process holds the keys, the others connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiodist.credentials import Certificates
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.store.addresses import listen, resolve, show
from aiodist.store.memory import MemoryStore
from aiodist.store.table import KeyTable, Watch
from aiodist.store.tcp_greeting import StrangerError, greet_client
from aiodist.store.tcp_wire import (
    MAX_FRAME,
    close_inherited,
    pack,
    read_message,
)

_log = logging.getLogger("aiodist.store")

_GREETING_SECONDS = 10.0
_FLUSH_SECONDS = 1.0

_SPARE = 64
_MANY = 1024
"""Clients that may be greeting at the same moment where nobody said how many there are."""


class TcpStoreServer:
    """Serves a store at ``host``:``port`` until closed. Make it with `start`.

    Whoever connects must greet as an aiodist client that knows the job's secret; others are
    refused with one line in the log ``aiodist.store``. Usable as an async context manager.
    """

    def __init__(
        self, host: str, port: int, secret: bytes, expected_clients: int | None, max_frame: int
    ) -> None:
        """Not for users: `start` makes one that listens."""
        self.host = host
        self.port = port
        self._secret = secret
        self._expected = expected_clients
        self._max_frame = max_frame
        self._table = KeyTable()
        self._listeners: list[asyncio.Server] = []
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._greeted = 0
        self._strangers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._crowd = _SPARE + 2 * (_MANY if expected_clients is None else expected_clients)
        self._crowded = False

    @classmethod
    async def start(
        cls,
        host: str,
        port: int = 0,
        *,
        secret: bytes = b"",
        expected_clients: int | None = None,
        max_frame: int = MAX_FRAME,
        certificates: Certificates | None = None,
    ) -> TcpStoreServer:
        """Listen at ``host``, an address or a name of this machine, and no other address.

        ``host`` "0.0.0.0" or "::" asks for every address of the family. ``port`` 0 takes a free
        one: see the attribute ``port``. With ``expected_clients``, the server stops accepting
        once that many are connected at the same time: the port is free for the next job's
        server, and nobody of the next job meets this one. ``secret``: the job's; without one
        every aiodist client may come. ``max_frame``: bytes of the longest message.
        ``certificates``: clients must come by TLS, with a certificate of the same authority.

        Raises DistStoreError for a name that does not resolve, a port in use, a foreign address.
        """
        tls: dict[str, Any] = {}
        if certificates is not None:
            tls["ssl"] = certificates.server_context()
            tls["ssl_handshake_timeout"] = _GREETING_SECONDS
            tls["ssl_shutdown_timeout"] = _FLUSH_SECONDS
        addresses = await resolve(host, port, Deadline.never(), to_listen=True)
        sockets = listen(host, port, addresses)
        server = cls(host, sockets[0].getsockname()[1], secret, expected_clients, max_frame)
        try:
            for sock in sockets:
                server._listeners.append(
                    await asyncio.start_server(server._accept, sock=sock, **tls)
                )
        except BaseException:
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
        """How many clients are connected."""
        return self._greeted

    def store(self) -> MemoryStore:
        """The server's keys for its own process, without a connection. Lives as long as it does."""
        return MemoryStore(self._table)

    def stop_accepting(self) -> None:
        """Give the port back; clients that are connected stay. Idempotent."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    async def close(self) -> None:
        """Send what is answered, then drop all clients and the port. Idempotent; never raises."""
        self.stop_accepting()
        for writer in self._tasks.values():
            writer.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_FLUSH_SECONDS)
            for task in late:
                self._tasks[task].transport.abort()
                task.cancel()
            if late:
                await asyncio.wait(late)

    def close_in_child(self) -> None:
        """In a forked child: give back inherited sockets; the parent goes on serving."""
        close_inherited([*self._tasks.values(), *self._listeners])

    async def __aenter__(self) -> TcpStoreServer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = writer
        self._strangers[task] = writer
        if len(self._strangers) > self._crowd:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).transport.abort()
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
        client = _Client(self._table, writer, self._max_frame)
        try:
            greeted = await self._greet(reader, writer, name)
            self._no_stranger()
            if greeted:
                self._greeted += 1
                try:
                    self._enough()
                    while True:
                        client.handle(await read_message(reader, self._max_frame))
                        # A client that does not read its answers gets no further ones.
                        await writer.drain()
                finally:
                    self._greeted -= 1
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has left; whether it should have is not for the store to say
        except DistStoreError as error:
            _log.warning("store at %s: dropped the client %s: %s", self.address, name, error)
            writer.transport.abort()
        finally:
            self._no_stranger()
            client.drop()
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass

    def _no_stranger(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._strangers.pop(task, None)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> bool:
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                await greet_client(reader, writer, self._secret)
        except TimeoutError:
            why = f"it did not greet within {_GREETING_SECONDS:g} s"
        except StrangerError as error:
            if not error.first:
                return False  # it may have given up, and this server may be closing
            why = str(error)
        else:
            return True
        _log.warning(
            "store at %s: refused a connection from %s, which is no client of this job: %s",
            self.address,
            name,
            why,
        )
        return False

    def _enough(self) -> None:
        if self._expected is not None and self._greeted >= self._expected:
            self.stop_accepting()


class _Client:
    """One client's requests, answered from the table."""

    def __init__(self, table: KeyTable, writer: asyncio.StreamWriter, max_frame: int) -> None:
        self._table = table
        self._writer = writer
        self._max_frame = max_frame
        self._watches: dict[int, Watch] = {}
        self._operations: dict[str, tuple[Callable[..., Any], tuple[type, ...]]] = {
            "set": (table.set, (str, bytes)),
            "add": (table.add, (str, int)),
            "compare_set": (table.compare_set, (str, bytes, bytes)),
            "missing": (table.missing, (list,)),
            "delete": (table.delete, (str,)),
            "count": (table.__len__, ()),
            "cancel": (self._cancel, (int,)),
        }

    def handle(self, message: list[Any]) -> None:
        """Answer one request, now or when its keys are there."""
        number, operation, *arguments = message
        if operation in ("get", "wait"):
            _check(operation, arguments, (list,))
            self._wait(number, arguments[0], with_value=operation == "get")
            return
        if not isinstance(operation, str) or operation not in self._operations:
            raise DistStoreError(f"it asks for the operation {operation!r}, which is not known")
        method, types = self._operations[operation]
        _check(operation, arguments, types)
        try:
            value = method(*arguments)
        except DistStoreError as error:
            self._answer(number, False, str(error))
        else:
            self._answer(number, True, value)

    def drop(self) -> None:
        """The client is gone: nobody waits any more."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    def _wait(self, number: int, keys: list[str], *, with_value: bool) -> None:
        fired = False

        def ready() -> None:
            nonlocal fired
            fired = True
            self._watches.pop(number, None)
            self._answer(number, True, self._table.get(keys[0]) if with_value else None)

        watch = self._table.watch(keys, ready)
        if not fired:
            self._watches[number] = watch

    def _cancel(self, number: int) -> list[str]:
        watch = self._watches.pop(number, None)
        if watch is None:
            return []
        missing = watch.missing()
        watch.cancel()
        return missing

    def _answer(self, number: int, ok: bool, value: Any) -> None:
        if self._writer.is_closing():
            return
        try:
            frame = pack((number, ok, value), self._max_frame)
        except DistStoreError as error:
            frame = pack((number, False, str(error)), self._max_frame)
        self._writer.write(frame)


def _check(operation: str, arguments: list[Any], types: tuple[type, ...]) -> None:
    good = len(arguments) == len(types) and all(map(isinstance, arguments, types))
    if good and types == (list,):
        good = all(isinstance(key, str) for key in arguments[0])
        good = good and (operation != "get" or len(arguments[0]) == 1)
    if not good:
        raise DistStoreError(f"its request {operation!r} has the wrong arguments")


def _peer_name(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return show(peer[0], peer[1]) if peer else "an unknown address"
