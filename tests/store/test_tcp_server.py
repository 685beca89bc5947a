"""The server of the TCP store: its start, and the clients that it refuses."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aiodist.deadline import Deadline
from aiodist.store import TcpStoreServer, tcp_server
from aiodist.store.addresses import Address
from aiodist.store.tcp_greeting import GREETING
from tests.limits import until


async def test_a_start_that_is_cancelled_leaves_no_socket_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolved(
        host: str, port: int, deadline: Deadline, *, to_listen: bool
    ) -> list[Address]:
        return [(socket.AF_INET, (host, port))]

    monkeypatch.setattr(tcp_server, "resolve", resolved)
    starting = asyncio.create_task(TcpStoreServer.start("127.0.0.1"))
    await asyncio.sleep(0)  # it listens, and waits for the loop to watch its socket
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    ours, theirs = socket.socketpair()  # the first gets the number of the server's socket
    with ours, theirs:
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, arrived.set)
        theirs.send(b"!")
        try:
            await until(arrived.is_set)
        finally:
            loop.remove_reader(ours)


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
