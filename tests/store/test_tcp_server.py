"""The server of the TCP store: its start, and the clients that it refuses."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from typing import Any

import pytest
import uvloop

from aiodist import accept_loop
from aiodist.credentials import VARIABLES
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.store import TcpStore, TcpStoreServer, tcp_server
from aiodist.store.tcp_greeting import GREETING
from tests.certificates import tls_files
from tests.descriptors import no_descriptor_left
from tests.limits import scaled, until


async def test_a_client_without_a_proof_is_told_apart_from_one_without_a_greeting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_server, "_PROOF_SECONDS", 0.05)
    async with await TcpStoreServer.start("127.0.0.1") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GREETING + bytes(32))  # and then it is stopped
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert "it did not show that it knows this job's secret within 0.05 s" in caplog.text


async def test_a_start_whose_sockets_the_system_does_not_watch_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, watched = asyncio.get_running_loop(), []

    def watch(fd: int, *callback: object) -> None:
        watched.append(fd)
        if len(watched) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loop, "add_reader", watch)
    monkeypatch.setattr(loop, "remove_reader", lambda fd: True)
    two = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    monkeypatch.setattr(tcp_server, "listen", lambda *_: two)
    with pytest.raises(OSError, match="No space left"):
        await TcpStoreServer.start("127.0.0.1")
    assert [sock.fileno() for sock in two] == [-1, -1]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_client_that_does_not_read_keeps_no_other_waiting(run: Any) -> None:
    large = bytes(32 << 20)

    async def main() -> None:
        async with (
            await TcpStoreServer.start("127.0.0.1") as server,
            await TcpStore.connect("127.0.0.1", server.port) as other,
        ):
            await server.store().set("large", large)
            deaf = await TcpStore.connect("127.0.0.1", server.port)
            deaf._writer.transport.pause_reading()  # type: ignore[attr-defined]
            asked = asyncio.create_task(deaf.get("large", Deadline(scaled(20))))
            async with asyncio.timeout(scaled(10)):
                for number in range(20):
                    await asyncio.sleep(0.01)
                    await other.set("small", bytes([number]))
            deaf._writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await asked == large
            await deaf.close()

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_close_during_a_greeting_logs_nothing(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = await TcpStoreServer.start("127.0.0.1")
        with socket.create_connection(("127.0.0.1", server.port)):
            await until(lambda: server._strangers)
            await server.close()

    run(main())
    gc.collect()  # asyncio tells of an error that was not looked at
    assert not caplog.records


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_out_of_descriptors_the_server_waits_and_says_so_once(
    run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept_loop, "PAUSE_SECONDS", 0.005)

    async def main() -> None:
        async with await TcpStoreServer.start("127.0.0.1") as server:
            connecting = socket.socket()
            connecting.setblocking(False)
            with connecting:
                with no_descriptor_left():
                    await asyncio.get_running_loop().sock_connect(
                        connecting, ("127.0.0.1", server.port)
                    )
                    await asyncio.sleep(0.05)
                    assert not server._strangers
                await until(lambda: server._strangers)

    run(main())
    assert len(caplog.records) == 1
    assert caplog.text.count("cannot accept connections at 127.0.0.1:") == 1
    assert "ulimit -n" in caplog.text


async def test_a_server_that_is_out_of_descriptors_closes_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await TcpStoreServer.start("127.0.0.1")
    with socket.socket() as connecting:
        connecting.setblocking(False)
        with no_descriptor_left():
            await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", server.port))
            await until(lambda: caplog.records)
            await server.close()
        await asyncio.sleep(scaled(0.3) + accept_loop.PAUSE_SECONDS)
    assert len(caplog.records) == 1


async def test_a_store_without_a_secret_of_its_own_has_that_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIODIST_SECRET", "ours")
    async with await TcpStoreServer.start("127.0.0.1") as server:
        async with await TcpStore.connect("127.0.0.1", server.port, Deadline(20)) as store:
            await store.set("key", b"value")
        for other in (b"", b"theirs"):
            with pytest.raises(DistStoreError, match="does not know this job's secret"):
                await TcpStore.connect("127.0.0.1", server.port, Deadline(20), secret=other)


async def test_a_store_without_a_secret_of_its_own_has_the_certificates_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = tls_files()
    for name, path in zip(VARIABLES, (files.cert, files.key, files.ca), strict=True):
        monkeypatch.setenv(name, path)
    async with await TcpStoreServer.start("127.0.0.1") as server:
        async with await TcpStore.connect("127.0.0.1", server.port, Deadline(20)) as store:
            await store.set("key", b"value")
        with pytest.raises(DistStoreError):
            await TcpStore.connect("127.0.0.1", server.port, Deadline(20), secret=b"")
