"""The reserved port: taken for other processes, usable by the server that it is kept for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from datetime import timedelta
from typing import NoReturn

import pytest
import uvloop

from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.launch.ports import reserve_port
from tests.limits import scaled
from tests.links.kernels import REFUSALS, remove_ipv6


def _torch_store(port: int, use_libuv: bool):
    return pytest.importorskip("torch.distributed").TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=10),
        use_libuv=use_libuv,
    )


@pytest.fixture(scope="module", autouse=True)
def _what_libraries_open_once() -> None:
    """uvloop and torch keep a pipe each from their first use on."""
    uvloop.run(asyncio.sleep(0))
    _torch_store(0, use_libuv=True)


async def _serve_and_connect(port: int, host: str) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), host, port)
    async with server:
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_asyncio_server_listens_on_a_reserved_port(runner, host):
    with reserve_port() as reservation:
        runner(_serve_and_connect(reservation.port, host))


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_torch_store_listens_on_a_reserved_port(use_libuv):
    with reserve_port() as reservation:
        store = _torch_store(reservation.port, use_libuv)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_a_reserved_port_refuses_connections_until_a_server_listens():
    with reserve_port() as reservation, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reservation.port), timeout=scaled(5))


def test_the_system_hands_out_no_reserved_port():
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(reserve_port()).port for _ in range(200)]
        other = "from aiodist.launch.ports import reserve_port as r\n"
        other += "held = [r() for _ in range(200)]\nprint(*[h.port for h in held])"
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, check=True)
        theirs = [int(word) for word in done.stdout.split()]
    assert len(set(mine + theirs)) == 400


def test_an_outgoing_connection_does_not_take_a_reserved_port():
    with contextlib.ExitStack() as stack:
        reserved = {stack.enter_context(reserve_port()).port for _ in range(50)}
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        address = server.getsockname()
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(address))
            assert client.getsockname()[1] not in reserved


def test_closing_gives_the_port_back_and_may_be_repeated():
    reservation = reserve_port()
    reservation.close()
    reservation.close()
    # Without SO_REUSEADDR this bind would fail while the reservation stood.
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", reservation.port))


def test_an_exclusive_bind_fails_while_the_reservation_stands():
    with (
        reserve_port() as reservation,
        socket.socket() as plain,
        pytest.raises(OSError, match="in use"),
    ):
        plain.bind(("127.0.0.1", reservation.port))


def test_a_port_in_use_is_refused_with_advice():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            DistNetworkError, match=rf"port {port} is already in use.*--master_port"
        ):
            reserve_port(port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port):
    with pytest.raises(InvalidUsageError, match="from 1 to 65535"):
        reserve_port(port)


def test_a_given_port_is_the_one_reserved():
    with reserve_port() as first:
        port = first.port
    with reserve_port(port) as second:
        assert second.port == port


def test_without_ipv6_the_port_is_still_reserved(monkeypatch):
    monkeypatch.setattr(socket, "has_ipv6", False)
    with reserve_port() as reservation:
        asyncio.run(_serve_and_connect(reservation.port, "127.0.0.1"))


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
def test_where_the_system_refuses_ipv6_a_port_is_reserved_for_ipv4(monkeypatch, number):
    remove_ipv6(monkeypatch, number)
    with reserve_port() as reservation:
        assert reservation.port > 0


def test_a_process_that_may_make_no_sockets_is_told_so(monkeypatch):
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(
        DistNetworkError, match=r"^no port can be reserved: Operation not permitted; "
    ):
        reserve_port()
    with pytest.raises(DistNetworkError, match=r"^port 80 may not be used.*above 1023$"):
        reserve_port(80)
