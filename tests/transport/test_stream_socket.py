"""What only connections over sockets do: die with a process, survive a fork, end without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from aiodist import accept_loop
from aiodist.accept_loop import AcceptLoop
from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.testing.check_transport import connected, turns
from aiodist.testing.sinks import Memory, Sent, Sink
from aiodist.transport import stream_socket
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.stream_socket import SocketConnection
from aiodist.transport.tcp import TcpTransport, parse_address
from aiodist.transport.unix import UnixTransport
from tests.descriptors import no_descriptor_left
from tests.limits import until


def socket_pair() -> tuple[SocketConnection, socket.socket]:
    """A connection, and the other end as a plain blocking socket."""
    ours, theirs = socket.socketpair()
    return SocketConnection(ours, "unix", "the other end"), theirs


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments])


def exit_status(child: int) -> int:
    return os.waitpid(child, 0)[1]


CLIENT = """
import signal, socket, sys
if sys.argv[1] == "unix":
    family, where = socket.AF_UNIX, "\\0" + sys.argv[2]
else:
    family, where = socket.AF_INET, (sys.argv[2], int(sys.argv[3]))
sock = socket.socket(family)
sock.connect(where)
signal.pause()
"""


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_a_killed_process_is_noticed_within_a_second(
    scheme: str, scaled: Callable[[float], float]
) -> None:
    transport: Transport = TcpTransport("127.0.0.1") if scheme == "tcp" else UnixTransport()
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    if scheme == "tcp":
        host, port = parse_address(listener.address)
        arguments = [host, str(port)]
    else:
        arguments = [listener.address.removeprefix("unix:@")]
    client = started("-S", "-c", CLIENT, scheme, *arguments)
    try:
        connection = await accepted.get()
        sink = Sink()
        connection.start(sink)
        client.send_signal(signal.SIGKILL)
        async with asyncio.timeout(scaled(1)):
            await sink.ended()
    finally:
        client.kill()
        client.wait()
        await listener.close()


async def test_a_reset_is_a_network_error_that_names_the_peer() -> None:
    transport = TcpTransport("127.0.0.1")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    client = socket.create_connection(parse_address(listener.address))
    name = f"tcp://127.0.0.1:{client.getsockname()[1]}"
    connection = await accepted.get()
    sink = Sink()
    connection.start(sink)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await sink.ended()
    (error,) = sink.ends
    assert isinstance(error, DistNetworkError)
    assert name in str(error)
    assert isinstance(error.__cause__, ConnectionResetError)
    await listener.close()


async def test_the_last_bytes_of_a_lost_peer_are_read_before_a_failed_send_is_reported() -> None:
    connection, theirs = socket_pair()
    sink, sent = Sink(), Sent()
    connection.start(sink)
    theirs.sendall(b"goodbye, because")
    theirs.close()
    connection.send([b"hello"], sent)  # EPIPE at once
    assert sink.ends == []  # not from within send
    connection.send([b"again"], sent)
    await sink.ended()
    assert sink.data == b"goodbye, because"
    await sent.all_of(2)
    assert len(sent.errors) == 2
    assert len(sink.ends) == 1


async def test_all_bytes_of_a_lost_peer_are_read_however_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_socket, "READ_BUDGET", 1000)  # of one turn
    connection, theirs = socket_pair()
    memory = Memory(50_000, pieces=(500,))
    connection.start(memory)
    theirs.sendall(bytes(50_000))
    theirs.close()
    connection.send([b"hello"])  # EPIPE at once
    await memory.ended()
    assert len(memory.data) == 50_000


async def test_a_failed_send_before_start_is_reported_at_start() -> None:
    connection, theirs = socket_pair()
    theirs.close()
    sent = Sent()
    connection.send([b"hello"], sent)
    await sent.all_of(1)
    sink = Sink()
    connection.start(sink)
    await sink.ended()
    assert isinstance(sink.ends[0], DistNetworkError)
    assert isinstance(sink.ends[0].__cause__, BrokenPipeError)


class LateError(Exception):
    """Raised by the handler of a signal."""


class Struck:
    """A socket whose call ``name`` raises once it is done: Python runs handlers of signals then."""

    def __init__(self, connection: SocketConnection, name: str) -> None:
        self._sock, self._name = connection._sock, name
        connection._sock = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._sock, name)
        if name != self._name:
            return function

        def struck(*args: Any) -> None:
            function(*args)
            raise LateError

        return struck


async def test_a_stream_whose_read_a_signals_handler_strikes_delivers_nothing_more() -> None:
    """How many bytes it has read is not known: what follows would be taken for what they were."""
    connection, theirs = socket_pair()
    sink = Sink()
    connection.start(sink)
    Struck(connection, "recv_into")
    theirs.sendall(b"the first half")
    with pytest.raises(LateError):
        connection.poll()
    assert sink.data == b""
    assert "failed: LateError" in str(sink.ends[0])
    assert theirs.recv(1) == b""
    theirs.close()


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_stream_whose_write_a_signals_handler_strikes_sends_nothing_more(
    is_queued: bool,
) -> None:
    connection, theirs = socket_pair()
    sink, sent = Sink(), Sent()
    connection.start(sink)
    Struck(connection, "send")
    if is_queued:
        connection._enqueue([b"one"], sent)
    with pytest.raises(LateError):
        connection.poll() if is_queued else connection.send([b"one"], sent)
    connection.send([b"two"], sent)
    await sent.all_of(2)
    assert all("LateError" in str(error) for error in sent.errors)
    assert theirs.recv(6) == b"one"
    assert theirs.recv(6) == b""
    theirs.close()


async def test_a_raising_on_sent_harms_no_other_send() -> None:
    connection, theirs = socket_pair()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def raises(error: BaseException | None) -> None:
        raise KeyError("mine")

    sent = Sent()
    connection.send([b"one"], raises)
    connection.send([b"two"], sent)
    assert sent.count == 1
    assert theirs.recv(6) == b"onetwo"
    assert [type(context["exception"]) for context in complaints] == [KeyError]
    connection.abort()
    theirs.close()


async def test_queued_sends_go_out_together() -> None:
    calls = 0

    class Counting(socket.socket):
        def sendmsg(self, *parts: Any) -> int:
            nonlocal calls
            calls += 1
            return super().sendmsg(*parts)

    ours, theirs = socket.socketpair()
    connection = SocketConnection(Counting(fileno=ours.detach()), "unix", "the other end")
    sent = Sent()
    block = memoryview(bytes(1 << 20))
    connection.send([block] * 4, sent)
    for _ in range(100):
        connection.send([b"h", b"body"], sent)
    theirs.setblocking(False)
    taken = 0
    while taken < 4 * len(block):
        await asyncio.sleep(0)
        if select.select([theirs], [], [], 0)[0]:
            taken += len(theirs.recv(min(1 << 16, 4 * len(block) - taken)))
    await sent.all_of(101)
    assert 0 < calls < 100  # fewer than there were sends: 64 parts at a time
    connection.abort()
    theirs.close()


async def test_views_of_any_shape_and_format_are_sent_as_their_bytes() -> None:
    connection, theirs = socket_pair()
    numbers = memoryview(bytearray(64)).cast("d")
    table = memoryview(bytes(range(12))).cast("B", (3, 4))
    empty = memoryview(b"").cast("d")
    sent = Sent()
    connection.send([numbers, table, empty], sent)
    connection.send([empty], sent)
    assert sent.count == 2
    assert theirs.recv(1000) == bytes(64) + bytes(range(12))
    big = memoryview(bytearray(4 << 20)).cast("d")
    connection.send([big, table], sent)  # does not fit: the queued path
    sink = 0
    theirs.setblocking(False)
    while sink < big.nbytes + 12:
        await asyncio.sleep(0)
        if select.select([theirs], [], [], 0)[0]:
            sink += len(theirs.recv(1 << 20))
    await sent.all_of(3)
    connection.abort()
    theirs.close()


async def test_close_in_a_forked_child_leaves_the_parents_stream_alone() -> None:
    raw = socket.socketpair()
    a, b = (SocketConnection(sock, "unix", "the other end") for sock in raw)
    with contextlib.closing(raw[0]), contextlib.closing(raw[1]):
        sinks = Sink(), Sink()
        a.start(sinks[0])
        b.start(sinks[1])
        child = os.fork()
        if child == 0:
            try:
                a.close_in_child()
                b.close_in_child()
                os._exit(0 if raw[0].fileno() == raw[1].fileno() == -1 else 1)
            finally:
                os._exit(2)
        assert exit_status(child) == 0
        a.send([b"to b"])
        b.send([b"to a"])
        await sinks[0].holds(4)
        await sinks[1].holds(4)
        assert sinks[0].ends == sinks[1].ends == []


async def test_a_listener_closed_in_a_forked_child_goes_on_in_the_parent() -> None:
    transport = UnixTransport(abstract=False)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    child = os.fork()
    if child == 0:
        try:
            listener.close_in_child()
        finally:
            os._exit(0)
    assert exit_status(child) == 0
    connection = await transport.connect(listener.address, Deadline(5))
    (await accepted.get()).abort()
    connection.abort()
    await listener.close()


async def test_close_tells_the_other_side_and_ends_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, scaled: Callable[[float], float]
) -> None:
    monkeypatch.setattr(stream_socket, "DRAIN_SECONDS", 3600)

    async def make() -> tuple[Transport, Transport]:
        return UnixTransport(), UnixTransport()

    async with connected(make) as (a, b):
        sink = Sink()
        b.start(sink)
        async with asyncio.timeout(scaled(5)):
            await a.close()
        assert sink.ends == [None]


async def test_close_does_not_wait_long_for_a_peer_that_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_socket, "DRAIN_SECONDS", 0.01)
    connection, theirs = socket_pair()
    theirs.sendall(b"unread")
    connection.send([b"last"])
    await connection.close()
    assert theirs.recv(10) == b"last"
    assert theirs.recv(10) == b""
    theirs.close()


async def test_one_turn_reads_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_socket, "READ_BUDGET", 1000)
    connection, theirs = socket_pair()
    theirs.sendall(bytes(50_000))
    memory = Memory(50_000, pieces=(500,))
    connection.start(memory)
    await turns(3)
    assert 0 < len(memory.data) <= 4000
    await memory.full()
    connection.abort()
    theirs.close()


async def test_out_of_descriptors_the_listener_waits_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept_loop, "PAUSE_SECONDS", 0.005)
    transport = TcpTransport("127.0.0.1")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    client = socket.create_connection(parse_address(listener.address))
    with no_descriptor_left():
        tries = 0
        pause = AcceptLoop._pause
        again = asyncio.Event()

        def counted(self: AcceptLoop, error: OSError) -> None:
            nonlocal tries
            tries += 1
            pause(self, error)
            if tries == 3:
                again.set()

        monkeypatch.setattr(AcceptLoop, "_pause", counted)
        await again.wait()
        assert accepted.empty()
    (await accepted.get()).abort()
    assert len(caplog.records) == 1
    assert "ulimit -n" in caplog.text
    client.close()
    await listener.close()


@pytest.mark.parametrize(
    "transport", [TcpTransport("127.0.0.1"), UnixTransport()], ids=["tcp", "unix"]
)
async def test_out_of_descriptors_a_listener_advises_to_raise_their_limit(
    transport: Transport,
) -> None:
    with no_descriptor_left(), pytest.raises(DistNetworkError, match=r"open files: ulimit -n$"):
        await transport.listen(lambda connection: connection.abort())


async def test_a_listener_that_may_not_accept_waits_and_says_each_reason_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept_loop, "PAUSE_SECONDS", 0.005)
    tries, number = 0, errno.EPERM

    def refuse(sock: socket.socket) -> NoReturn:
        nonlocal tries
        tries += 1
        raise OSError(number, os.strerror(number))

    transport = TcpTransport("127.0.0.1")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", refuse)
        client = socket.create_connection(parse_address(listener.address))
        await until(lambda: tries >= 3 * accept_loop.ACCEPTS_A_TURN)
        number, tries = errno.EMFILE, 0
        await until(lambda: tries >= 3)
        assert accepted.empty()
    (await accepted.get()).abort()
    assert len(caplog.records) == 2
    assert "Operation not permitted; trying again every" in caplog.records[0].getMessage()
    assert "Too many open files; trying again every" in caplog.records[1].getMessage()
    client.close()
    await listener.close()


async def test_a_listener_accepts_behind_a_connection_that_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, [ConnectionAbortedError(errno.ECONNABORTED, "")]

    def accepting(sock: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", accepting)
    transport = TcpTransport("127.0.0.1")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    client = socket.create_connection(parse_address(listener.address))
    (await accepted.get()).abort()
    assert not caplog.records
    client.close()
    await listener.close()


async def test_an_on_accept_that_raises_costs_its_connection_only() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    failing = [True]

    def on_accept(connection: Connection) -> None:
        if failing.pop():
            failing.append(False)
            raise KeyError("mine")
        failing.append(False)
        accepted.put_nowait(connection)

    transport = TcpTransport("127.0.0.1")
    listener = await transport.listen(on_accept)
    first = await transport.connect(listener.address, Deadline(5))
    sink = Sink()
    first.start(sink)
    await sink.ended()
    assert len(complaints) == 1
    second = await transport.connect(listener.address, Deadline(5))
    (await accepted.get()).abort()
    second.abort()
    await listener.close()


async def test_reading_a_payload_allocates_nothing_of_its_size() -> None:
    async def make() -> tuple[Transport, Transport]:
        return TcpTransport("127.0.0.1"), TcpTransport("127.0.0.1")

    data = bytes(8 << 20)
    async with connected(make) as (a, b):
        memory = Memory(len(data))
        b.start(memory)
        gc.collect()
        tracemalloc.start()
        try:
            a.send([data])
            await memory.full()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 18
