"""Which peers TLS accepts, and which it refuses."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import ssl
import struct
import time

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.testing.sinks import Memory, Sink
from aiodist.transport import pending_handshakes, tcp
from aiodist.transport import tls as module
from aiodist.transport.base_transport import Connection
from aiodist.transport.connecting import connect_socket
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.tls import TlsTransport
from tests.certificates import tls_files
from tests.limits import scaled, until


async def test_a_certificate_of_another_authority_is_refused_on_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    accepted: list[Connection] = []
    ours = TlsTransport("127.0.0.1", tls_files())
    theirs = TlsTransport("127.0.0.1", tls_files("another"))
    listener = await ours.listen(accepted.append)
    try:
        with caplog.at_level(logging.WARNING, "aiodist"):
            with pytest.raises(DistNetworkError, match="TLS was refused: CERTIFICATE_VERIFY"):
                await theirs.connect(listener.address, Deadline(20))
            await until(lambda: "turned a stranger away" in caplog.text)
        assert accepted == []
    finally:
        await listener.close()


async def test_a_client_that_the_listener_does_not_trust_gets_an_error() -> None:
    accepted: list[Connection] = []
    files, another = tls_files(), tls_files("another")
    listener = await TlsTransport("127.0.0.1", files).listen(accepted.append)
    try:
        mixed = type(files)(another.cert, another.key, files.ca)
        connection = await TlsTransport("127.0.0.1", mixed).connect(listener.address, Deadline(20))
        sink = Sink()
        connection.start(sink)
        await sink.ended()
        assert isinstance(sink.ends[0], DistNetworkError)
        assert accepted == []
    finally:
        await listener.close()


async def test_a_listener_whose_certificate_has_expired_is_refused_for_that() -> None:
    expired = TlsTransport("127.0.0.1", tls_files("of old", days=-1))
    listener = await expired.listen(lambda connection: connection.abort())
    try:
        with pytest.raises(DistNetworkError, match=r"TLS was refused: .*certificate has expired"):
            await expired.connect(listener.address, Deadline(20))
    finally:
        await listener.close()


async def test_time_in_which_the_loop_stands_still_is_no_time_for_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(sock: socket.socket, address: object) -> None:
        await connect_socket(sock, address)
        time.sleep(0.5)  # noqa: ASYNC251  # the program computes

    monkeypatch.setattr(tcp, "connect_socket", slow)
    transport = TlsTransport("127.0.0.1", tls_files())
    listener = await transport.listen(lambda connection: connection.abort())
    connection = await transport.connect(listener.address, Deadline(0.4))
    connection.abort()
    await listener.close()


async def test_a_host_that_does_not_answer_is_told_from_a_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(sock: socket.socket, address: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(tcp, "connect_socket", never)
    transport = TlsTransport("127.0.0.1", tls_files())
    with pytest.raises(DistNetworkError, match=r"after 0\.05 s: the host does not answer"):
        await transport.connect("tls://127.0.0.1:9", Deadline(0.05))


async def test_plain_text_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    accepted: list[Connection] = []
    listener = await TlsTransport("127.0.0.1", tls_files()).listen(accepted.append)
    try:
        plain = TcpTransport("127.0.0.1")
        with caplog.at_level(logging.WARNING, "aiodist"):
            connection = await plain.connect(listener.address.replace("tls", "tcp"), Deadline(20))
            sink = Sink()
            connection.start(sink)
            connection.send([b"GET / HTTP/1.1\r\n\r\n"])
            await sink.ended()
            await until(lambda: "failed at TLS" in caplog.text)
        assert accepted == []
        connection.abort()
    finally:
        await listener.close()


@pytest.mark.usefixtures("eager_tasks")
async def test_in_an_eager_task_a_guest_that_fails_at_once_is_turned_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = await TlsTransport("127.0.0.1", tls_files()).listen(lambda connection: None)
    host, port = listener.address.partition("://")[2].rsplit(":", 1)
    try:
        with (
            caplog.at_level(logging.WARNING, "aiodist"),
            socket.create_connection((host, int(port))) as plain,
        ):
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")  # there before the loop accepts it
            await until(lambda: "turned a stranger away" in caplog.text)
            assert "failed at TLS" in caplog.text
    finally:
        await listener.close()


async def test_too_many_that_say_nothing_lose_their_places(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pending_handshakes, "SPARE", 3)
    monkeypatch.setattr(module, "_MOST_HANDSHAKES", 0)
    accepted: list[Connection] = []
    secure = TlsTransport("127.0.0.1", tls_files())
    listener = await secure.listen(accepted.append)
    plain, silent = TcpTransport("127.0.0.1"), []
    try:
        with caplog.at_level(logging.WARNING, "aiodist"):
            for _ in range(5):
                one = await plain.connect(listener.address.replace("tls", "tcp"), Deadline(20))
                silent.append((one, Sink()))
                one.start(silent[-1][1])
            for _, sink in silent[:2]:
                await sink.ended()
            rank = await secure.connect(listener.address, Deadline(20))
        await until(lambda: len(accepted) == 1)
        assert caplog.text.count("is besieged") == 1
        memory = Memory(5)
        accepted[0].start(memory)
        rank.send([b"hello"])
        await memory.full()
        rank.abort()
        accepted[0].abort()
    finally:
        for one, _ in silent:
            one.abort()
        await listener.close()


async def test_a_listener_that_closes_at_once_closes_what_it_has_just_accepted() -> None:
    listener = await TlsTransport("127.0.0.1", tls_files()).listen(_refuse)
    host, port = listener.address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port))) as client:
        listener._accepting._on_readable()
        await listener.close()
        client.setblocking(False)
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


def _refuse(connection: Connection) -> None:
    raise AssertionError("no connection is proven here")


def test_a_stream_that_ends_as_it_is_wrapped_leaves_no_descriptor() -> None:
    """As long as the error is held, whose frames hold the socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    listener.close()
    select.select([client], [], [], scaled(10))  # until it is reset
    context, fd = TlsTransport("127.0.0.1", tls_files())._client, client.fileno()
    with pytest.raises(ConnectionResetError) as caught:
        module._Secured(context, client, server_side=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert caught.value.__traceback__ is not None


async def test_nothing_older_than_tls_1_3_is_spoken() -> None:
    listener = await TlsTransport("127.0.0.1", tls_files()).listen(lambda connection: None)
    context = tls_files().client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, port = listener.address.removeprefix("tls://").split(":")
    try:
        with pytest.raises(OSError, match=r"(?i)protocol|reset|eof"):
            await asyncio.open_connection(host, int(port), ssl=context, server_hostname="")
    finally:
        await listener.close()


async def test_a_damaged_record_behind_good_bytes_is_an_error_at_once() -> None:
    accepted: list[Connection] = []
    transport = TlsTransport("127.0.0.1", tls_files())
    listener = await transport.listen(accepted.append)
    ours = await transport.connect(listener.address, Deadline(20))
    await until(lambda: bool(accepted))
    await listener.close()
    try:
        sink = Sink()
        accepted[0].start(sink)
        ours.send([b"hello"])
        os.write(ours._fd, b"\x17\x03\x03\x00\x20" + bytes(32))  # type: ignore[attr-defined]
        async with asyncio.timeout(scaled(5)):
            await sink.ended()
        assert isinstance(sink.ends[0], DistNetworkError)
        assert isinstance(sink.ends[0].__cause__, ssl.SSLError)
    finally:
        ours.abort()
        accepted[0].abort()


async def test_a_listener_that_resets_before_tls_begins_is_a_network_error() -> None:
    """A rank that dies with connections in its backlog."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Late(TlsTransport):
            async def connected_socket(self, address: str, deadline: Deadline) -> socket.socket:
                sock = await super().connected_socket(address, deadline)
                other, _ = server.accept()
                other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                other.close()
                return sock

        address = f"tls://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DistNetworkError, match=f"cannot connect to {address}: it hung up"):
            await Late("127.0.0.1", tls_files()).connect(address, Deadline(20))
