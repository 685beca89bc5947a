"""Bundles of TCP streams: how bytes go round, and what strangers and broken streams do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.testing.check_transport import pattern, turns
from aiodist.testing.sinks import Memory, Sent
from aiodist.transport import pending_handshakes, tcp
from aiodist.transport.base_transport import Connection
from aiodist.transport.bundle import BLOCK_BYTES, Bundle
from aiodist.transport.connecting import connect_socket
from aiodist.transport.stream_socket import SocketConnection
from aiodist.transport.striped import _HELLO, StripedTransport
from tests.limits import scaled, until

HOST = "127.0.0.1"
TCP_INFO = 11  # Linux's number


def pairs(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    made = [socket.socketpair() for _ in range(count)]
    for each in made:
        for sock in each:
            sock.setblocking(False)
    return [a for a, _ in made], [b for _, b in made]


def until_blocked(call: Callable[[], int]) -> int:
    """The sum of what ``call()`` returns until it would block."""
    total = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            total += call()
    return total


def test_blocks_go_round_and_a_full_socket_holds_the_next_one_back() -> None:
    ours, theirs = pairs(2)
    with contextlib.closing(Bundle(ours)) as out, contextlib.closing(Bundle(theirs)) as into:
        data = bytes(range(256)) * (BLOCK_BYTES // 256)
        assert (
            out.sendmsg([b"head", memoryview(data)[: BLOCK_BYTES - 4], b"tail"]) == BLOCK_BYTES + 4
        )
        assert theirs[1].recv(100, socket.MSG_PEEK) == b"tail"
        assert out.writing_fileno() == ours[1].fileno()
        buffer = bytearray(BLOCK_BYTES + 100)
        assert into.recv_into(buffer) == BLOCK_BYTES + 4
        assert buffer[: BLOCK_BYTES + 4] == b"head" + data[:-4] + b"tail"
        assert into.fileno() == theirs[1].fileno()
        with pytest.raises(BlockingIOError):
            into.recv_into(buffer)
        sent = until_blocked(lambda: out.send(data))
        assert sent > BLOCK_BYTES
        assert until_blocked(lambda: into.recv_into(buffer)) == sent


def test_the_end_comes_after_the_last_byte() -> None:
    ours, theirs = pairs(3)
    with contextlib.closing(Bundle(theirs)) as into, contextlib.closing(Bundle(ours)) as out:
        assert out.send(bytes(BLOCK_BYTES + 5)) == BLOCK_BYTES + 5
        out.shutdown(socket.SHUT_WR)
        buffer = bytearray(2 * BLOCK_BYTES)
        assert into.recv_into(buffer) == BLOCK_BYTES + 5
        assert into.recv_into(buffer) == 0


def test_a_failure_comes_after_the_last_byte() -> None:
    class Broken:
        """A stream of which the system tells once that it is broken."""

        told = False

        def recv_into(self, buffer: memoryview) -> int:
            if self.told:
                return 0
            self.told = True
            raise ConnectionResetError

    (ours,), (theirs,) = pairs(1)
    with ours, theirs:
        into = Bundle([theirs, cast(Any, Broken())])
        assert ours.send(bytes(BLOCK_BYTES)) == BLOCK_BYTES
        buffer = bytearray(2 * BLOCK_BYTES)
        assert into.recv_into(buffer) == BLOCK_BYTES
        with pytest.raises(ConnectionResetError):
            into.recv_into(buffer)


async def connected(transport: StripedTransport) -> tuple[Connection, Connection]:
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    ours = await transport.connect(listener.address, Deadline(10))
    theirs = await accepted.get()
    await listener.close()
    return ours, theirs


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's struct tcp_info")
async def test_each_stream_carries_its_share() -> None:
    ours, theirs = await connected(StripedTransport([HOST], 4))
    memory, sent = Memory(16 * BLOCK_BYTES), Sent()
    theirs.start(memory)
    data = pattern(16 * BLOCK_BYTES)
    ours.send([data], sent)
    await memory.full()
    await sent.all_of(1)
    assert memory.data == data
    sockets = ours._bundle._sockets  # type: ignore[attr-defined]
    for sock in sockets:  # of struct tcp_info: bytes that the other side has acknowledged
        (acked,) = struct.unpack_from("<Q", sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 160), 120)
        assert 4 * BLOCK_BYTES <= acked < 4 * BLOCK_BYTES + 100
    ours.abort()
    theirs.abort()


async def test_one_broken_stream_ends_the_bundle() -> None:
    ours, theirs = await connected(StripedTransport([HOST], 3))
    memory = Memory(8 * BLOCK_BYTES)
    theirs.start(memory)
    ours._bundle._sockets[1].shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    sent = Sent()
    ours.send([bytes(8 * BLOCK_BYTES)], sent)
    await sent.all_of(1)
    await memory.ended()
    assert isinstance(sent.errors[0], DistNetworkError)
    ours.abort()
    theirs.abort()


@pytest.mark.parametrize(
    "hellos",
    [
        [b"GET / HTTP/1.0\r\n\r\n\r\n"],
        [_HELLO.pack(b"x" * 16, 2, 2)],
        [_HELLO.pack(b"x" * 16, 0, 65)],
        [_HELLO.pack(b"x" * 16, 0, 3), _HELLO.pack(b"x" * 16, 0, 3)],
        [b"short"],
    ],
)
async def test_strangers_are_turned_away(
    hellos: list[bytes], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_handshakes, "HANDSHAKE_SECONDS", 0.05)
    accepted: list[Connection] = []
    listener = await StripedTransport([HOST], 2).listen(accepted.append)
    host, _, port = listener.address.partition("://")[2].partition(":")
    loop = asyncio.get_running_loop()
    guests = []
    for hello in hellos:
        guest = socket.create_connection((host, int(port)))
        guest.setblocking(False)
        await loop.sock_sendall(guest, hello)
        guests.append(guest)
    for guest in guests:
        with guest, contextlib.suppress(ConnectionResetError):  # a hello that was never read
            assert await loop.sock_recv(guest, 1) == b""
    await listener.close()
    assert not accepted
    assert "turned a stranger away" in caplog.text


async def test_a_descriptor_of_a_refused_stream_serves_the_next_connection() -> None:
    listener = await StripedTransport([HOST], 2).listen(lambda connection: None)
    host, _, port = listener.address.partition("://")[2].partition(":")
    with socket.create_connection((host, int(port))):
        pending = listener._reception.pending  # type: ignore[attr-defined]
        await until(lambda: len(pending) == 1)
        await asyncio.sleep(0)  # it waits for the greeting
        (guest,) = pending
        guest.abort(DistNetworkError("late"))
        first, second = socket.socketpair()  # they may get the descriptor of that stream
        ours = SocketConnection(first, "unix", "the other end")
        theirs = SocketConnection(second, "unix", "the first end")
        memories = Memory(5), Memory(5)
        ours.start(memories[0])
        theirs.start(memories[1])
        ours.send([b"hello"])
        theirs.send([b"hello"])
        async with asyncio.timeout(scaled(5)):
            for memory in memories:
                await memory.full()
        ours.abort()
        theirs.abort()
    await listener.close()


async def test_time_in_which_the_loop_stands_still_is_no_time_to_connect_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connects = 0

    async def slow(sock: socket.socket, address: object) -> None:
        nonlocal connects
        connects += 1
        if connects == 2:
            await turns(50)  # as over a network
        await connect_socket(sock, address)
        if connects == 1:
            time.sleep(0.2)  # noqa: ASYNC251  # the program computes

    monkeypatch.setattr(tcp, "connect_socket", slow)
    transport = StripedTransport([HOST], 2)
    listener = await transport.listen(lambda connection: connection.abort())
    connection = await transport.connect(listener.address, Deadline(0.1))
    connection.abort()
    await listener.close()


async def test_a_place_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    connects = 0

    async def silent(sock: socket.socket, address: object) -> None:
        nonlocal connects
        connects += 1
        if connects == 2:
            await asyncio.Event().wait()
        await connect_socket(sock, address)

    monkeypatch.setattr(tcp, "connect_socket", silent)
    transport = StripedTransport([HOST], 3)
    listener = await transport.listen(lambda connection: connection.abort())
    with pytest.raises(DistNetworkError, match=r"of 3 streams, number 1 .* after 0.05 s") as caught:
        await transport.connect(listener.address, Deadline(0.05))
    assert isinstance(caught.value.__cause__, TimeoutError)
    await listener.close()


async def test_the_error_counts_the_streams() -> None:
    transport = StripedTransport([HOST], 2)
    listener = await transport.listen(lambda connection: None)
    address = listener.address
    await listener.close()
    with pytest.raises(DistNetworkError, match=r"of 2 streams, number 0 failed: .* refused"):
        await transport.connect(address, Deadline(5))
    with pytest.raises(InvalidUsageError, match="not an address of bundles"):
        await transport.connect("tcp://127.0.0.1:1", Deadline(5))
    for count in (0, 65):
        with pytest.raises(InvalidUsageError, match="give 1 to 64"):
            StripedTransport([HOST], count)
