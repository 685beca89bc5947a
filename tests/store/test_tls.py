"""The store by TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store import Store, TcpStore, TcpStoreServer, tcp_connect
from aiodist.testing.check_store import check_store
from tests.certificates import tls_files
from tests.limits import scaled


async def test_a_tls_store_conforms() -> None:
    files = tls_files()
    async with await TcpStoreServer.start("127.0.0.1", secret=b"s", certificates=files) as server:

        async def make() -> Store:
            return await TcpStore.connect(
                "127.0.0.1", server.port, Deadline(20), secret=b"s", certificates=files
            )

        await check_store(make)


async def test_strangers_to_the_authority_are_refused_at_once() -> None:
    files, another = tls_files(), tls_files("another")
    untrusted = type(files)(another.cert, another.key, files.ca)
    async with await TcpStoreServer.start("127.0.0.1", certificates=files) as server:
        for theirs in (another, untrusted):
            with pytest.raises(DistStoreError, match="cannot be reached by TLS"):
                await TcpStore.connect("127.0.0.1", server.port, Deadline(300), certificates=theirs)
        assert server.clients == 0


async def test_a_certificate_that_has_expired_is_told() -> None:
    expired = tls_files("of old", days=-1)
    async with await TcpStoreServer.start("127.0.0.1", certificates=expired) as server:
        with pytest.raises(DistStoreError, match=r"by TLS: .*certificate has expired"):
            await TcpStore.connect("127.0.0.1", server.port, Deadline(300), certificates=expired)


async def test_a_goodbye_by_tls_that_fails_is_no_error_of_the_servers_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwrap(_: ssl.SSLObject) -> None:
        raise BrokenPipeError  # as OpenSSL 3.6 reports a client that is gone

    server = await TcpStoreServer.start("127.0.0.1", certificates=tls_files())
    client = await TcpStore.connect(
        "127.0.0.1", server.port, Deadline(20), certificates=tls_files()
    )
    monkeypatch.setattr(ssl.SSLObject, "unwrap", unwrap)
    await server.close()
    assert server.clients == 0
    with pytest.raises(DistStoreError):
        await client.get("key", 20)
    await client.close()


async def test_a_handshake_that_gets_no_answer_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts for it
        port = mute.getsockname()[1]
        async with asyncio.timeout(scaled(10)):
            with pytest.raises(StoreTimeoutError, match="accepted the connection and said nothing"):
                await TcpStore.connect("127.0.0.1", port, Deadline(0.1), certificates=tls_files())


async def test_a_closed_server_drops_a_client_whose_handshake_was_not_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected, server_is_closed = asyncio.Event(), asyncio.Event()
    handshake = tcp_connect._stream

    async def slow(sock: socket.socket, context: ssl.SSLContext | None) -> tcp_connect.Stream:
        connected.set()
        await server_is_closed.wait()
        return await handshake(sock, context)

    monkeypatch.setattr(tcp_connect, "_stream", slow)
    files = tls_files()
    async with asyncio.timeout(scaled(20)):
        server = await TcpStoreServer.start("127.0.0.1", certificates=files)
        connecting = asyncio.create_task(
            TcpStore.connect("127.0.0.1", server.port, Deadline(20), certificates=files, once=True)
        )
        await connected.wait()
        for _ in range(10):  # the server accepts the connection
            await asyncio.sleep(0)
        await server.close()
        server_is_closed.set()
        with pytest.raises(DistStoreError):
            await connecting


async def test_a_connect_that_is_cancelled_as_any_step_of_it_ends_is_no_harm_to_the_next() -> None:
    files = tls_files()

    def connect() -> Coroutine[Any, Any, TcpStore]:
        return TcpStore.connect("127.0.0.1", server.port, Deadline(20), certificates=files)

    async with await TcpStoreServer.start("127.0.0.1", certificates=files) as server:
        for steps in range(1, 4):  # connect, handshake of TLS, greeting
            connecting = asyncio.create_task(connect())
            ended: set[asyncio.Future[Any]] = set()
            async with asyncio.timeout(scaled(20)):
                while len(ended) < steps:
                    await asyncio.sleep(0)
                    waiter = connecting._fut_waiter  # type: ignore[attr-defined]
                    if waiter is not None and waiter.done():
                        ended.add(waiter)
            connecting.cancel()
            await asyncio.wait([connecting])
            assert connecting.cancelled()
            async with await connect() as store:
                await store.set("key", b"%d" % steps)
                assert await store.get("key") == b"%d" % steps
