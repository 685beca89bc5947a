"""Silent connections to the store: many of them keep no other client out."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiodist.deadline import Deadline
from aiodist.store import TcpStore, TcpStoreServer, tcp_server
from tests.limits import scaled


async def test_the_oldest_of_too_many_silent_connections_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_server, "_SPARE", 2)
    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    with caplog.at_level(logging.WARNING, "aiodist.store"):
        async with await TcpStoreServer.start(
            "127.0.0.1", secret=b"s", expected_clients=1
        ) as server:
            for _ in range(9):
                silent.append(await asyncio.open_connection("127.0.0.1", server.port))
            async with asyncio.timeout(scaled(20)):
                for reader, _ in silent[:5]:  # 9 less the places: 2 and two a client
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await reader.readexactly(1)
                client = await TcpStore.connect("127.0.0.1", server.port, Deadline(20), secret=b"s")
            async with client:
                await client.set("k", b"v")
    for _, writer in silent:
        writer.transport.abort()
    assert caplog.text.count("is besieged") == 1


async def test_a_server_logs_so_many_strangers_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_server, "_MAX_LOGGED", 2)
    with caplog.at_level(logging.WARNING, "aiodist.store"):
        async with await TcpStoreServer.start("127.0.0.1") as server:
            for _ in range(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.read()
                writer.close()
                await writer.wait_closed()
    assert caplog.text.count("is no client of this job") == 2
    assert caplog.records[-1].getMessage().endswith("; no more of them will be logged")
