"""Addresses, names, interfaces and the errors of TCP."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.testing.check_transport import connected
from aiodist.testing.sinks import Sink
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.socket_listener import SocketListener
from aiodist.transport.tcp import TcpTransport, format_address, on_own_link, parse_address


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://127.0.0.1:80", ("127.0.0.1", 80)),
        ("tcp://node-3.example:65535", ("node-3.example", 65535)),
        ("tcp://[::1]:1", ("::1", 1)),
        ("tcp://[fe80::1%eth0]:29500", ("fe80::1%eth0", 29500)),
    ],
)
def test_addresses_are_read_and_written_back(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected
    assert format_address(*expected) == address


@pytest.mark.parametrize(
    ("host", "own", "expected"),
    [
        ("fe80::2", "fe80::1%eth0", "fe80::2%eth0"),
        ("fe80::2%eth1", "fe80::1%eth0", "fe80::2%eth1"),
        ("fd00::2", "fe80::1%eth0", "fd00::2"),
        ("10.0.0.2", "fe80::1%eth0", "10.0.0.2"),
        ("fe80::2", "fd00::1", "fe80::2"),
    ],
)
def test_a_peers_link_local_address_gets_this_ranks_interface(
    host: str, own: str, expected: str
) -> None:
    assert on_own_link(host, own) == expected


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp:",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://:80",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:port",
        "tcp://::1:80",
        "udp://host:80",
        "host:80",
    ],
)
async def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidUsageError, match="tcp://host:port"):
        await TcpTransport("127.0.0.1").connect(address, Deadline(1))


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback")
async def test_ipv6() -> None:
    async def make() -> tuple[Transport, Transport]:
        return TcpTransport("::1"), TcpTransport("127.0.0.1")

    async with connected(make) as (a, b):
        assert a.peer_name.startswith("tcp://[::1]:")
        assert b.peer_name.startswith("tcp://[::1]:")
        sink = Sink()
        b.start(sink)
        a.send([b"six"])
        await sink.holds(3)


async def test_a_host_name_is_resolved() -> None:
    transport = TcpTransport("localhost")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    _, port = parse_address(listener.address)
    connection = await transport.connect(f"tcp://localhost:{port}", Deadline(5))
    (await accepted.get()).abort()
    connection.abort()
    await listener.close()
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_listener_binds_its_own_interface_only() -> None:
    listener = await TcpTransport("127.0.0.1").listen(lambda connection: connection.abort())
    assert listener.address.startswith("tcp://127.0.0.1:")
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.2", parse_address(listener.address)[1]))
    await listener.close()


class SocketsKept(TcpTransport):
    """A transport that keeps the sockets of its connections."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.sockets: list[socket.socket] = []

    async def listen_raw(self, on_accept: Any, wrap: Any, *args: Any) -> SocketListener:
        return await super().listen_raw(on_accept, lambda sock: wrap(self._keep(sock)), *args)

    async def connected_socket(self, address: str, deadline: Deadline) -> socket.socket:
        return self._keep(await super().connected_socket(address, deadline))

    def _keep(self, sock: socket.socket) -> socket.socket:
        self.sockets.append(sock)
        return sock

    async def twice(self) -> tuple[Transport, Transport]:
        return self, self


async def test_nagle_is_off_on_both_ends() -> None:
    transport = SocketsKept()
    async with connected(transport.twice):
        assert len(transport.sockets) == 2
        for sock in transport.sockets:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="the system has no choice of it")
async def test_a_stream_is_not_paced_before_it_leaves_its_host() -> None:
    def control(sock: socket.socket) -> bytes:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    with socket.socket() as fresh:
        usual = control(fresh)
    transport = SocketsKept()
    async with connected(transport.twice) as ends:
        assert [control(sock) for sock in transport.sockets] == [b"reno"] * 2
        for end in ends:
            end.leaves_host()
        assert [control(sock) for sock in transport.sockets] == [usual] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127/8 is loopback on Linux only")
async def test_source_hosts_take_turns() -> None:
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await TcpTransport("127.0.0.1").listen(accepted.put_nowait)
    connecting = TcpTransport("127.0.0.1", source_hosts=["127.0.0.2", "::2", "127.0.0.3"])
    sources = []
    for _ in range(4):
        connection = await connecting.connect(listener.address, Deadline(5))
        other = await accepted.get()
        sources.append(parse_address(other.peer_name)[0])
        connection.abort()
        other.abort()
    assert sources == ["127.0.0.2", "127.0.0.3"] * 2
    await listener.close()


async def test_a_source_that_is_not_ours_is_named() -> None:
    connecting = TcpTransport("127.0.0.1", source_hosts=["192.0.2.1"])
    with pytest.raises(DistNetworkError, match=r"tcp://127\.0\.0\.1:9.*192\.0\.2\.1"):
        await connecting.connect("tcp://127.0.0.1:9", Deadline(5))


async def test_listening_on_a_foreign_address_raises() -> None:
    with pytest.raises(DistNetworkError, match=r"192\.0\.2\.1.*interface of this host"):
        await TcpTransport("192.0.2.1").listen(lambda connection: connection.abort())


async def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def resolve(host: str, port: int) -> None:
        await fails()

    monkeypatch.setattr("aiodist.transport.tcp._resolve", resolve)
    with pytest.raises(DistNetworkError, match=r"tcp://nowhere\.invalid:1.*does not resolve"):
        await TcpTransport("127.0.0.1").connect("tcp://nowhere.invalid:1", Deadline(5))
    with pytest.raises(DistNetworkError, match=r"'nowhere\.invalid': the name does not resolve"):
        await TcpTransport("nowhere.invalid").listen(lambda connection: connection.abort())


@pytest.mark.parametrize("name", ["a..b", 64 * "a" + ".invalid", 300 * "a"])
async def test_a_name_that_cannot_exist_does_not_resolve(name: str) -> None:
    with pytest.raises(DistNetworkError, match=f"{name}:1.*does not resolve"):
        await TcpTransport("127.0.0.1").connect(f"tcp://{name}:1", Deadline(5))
    with pytest.raises(DistNetworkError, match=f"{name}': the name does not resolve"):
        await TcpTransport(name).listen(lambda connection: connection.abort())
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_host_that_does_not_answer_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = format_address(*full.getsockname())
        transport = TcpTransport("127.0.0.1")
        connections = []

        async def fill() -> None:
            while True:  # the backlog takes one or two; later ones get no answer
                connections.append(await transport.connect(address, Deadline(0.05)))

        with pytest.raises(DistNetworkError, match=rf"timed out connecting to {address} after"):
            await fill()
        for connection in connections:
            connection.abort()
