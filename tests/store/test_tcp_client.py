import asyncio
import errno
import os
import resource
import socket
import sys
import threading
import warnings
from asyncio.subprocess import PIPE
from contextlib import contextmanager, suppress

import pytest
import uvloop

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, InvalidUsageError, StoreTimeoutError
from aiodist.store import TcpStore, TcpStoreServer, exchange, join, leave, tcp_server
from aiodist.store.tcp_greeting import answer_client, await_proof, greet_server
from aiodist.testing.check_store import check_store
from tests.limits import scaled, until


def soon() -> Deadline:
    return Deadline(20)


@pytest.fixture
async def server():
    async with await TcpStoreServer.start("127.0.0.1") as server:
        yield server


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_child_closes_what_its_parents_loop_has_closed(run):
    async def use():
        server = await TcpStoreServer.start("127.0.0.1")
        store = await TcpStore.connect("127.0.0.1", server.port)
        await store.close()
        await server.close()
        return store, server

    store, server = run(use())
    store.close_in_child()
    server.close_in_child()


async def test_a_child_without_a_free_descriptor_ends_its_parents_sockets(server):
    async with await TcpStore.connect("127.0.0.1", server.port) as store:
        number = store._writer.get_extra_info("socket").fileno()
        assert is_null_in_poor_child(number, store.close_in_child)
        await store.set("k", b"v")  # the parent's goes on


async def test_a_child_keeps_its_parents_port_no_longer_than_the_parent():
    server = await TcpStoreServer.start("127.0.0.1")
    with child_after(server.close_in_child):
        async with await TcpStore.connect("127.0.0.1", server.port) as store:
            await store.set("k", b"v")  # the parent's goes on
        await server.close()
        await until(lambda: not accepts(server.port))


@contextmanager
def child_after(close_in_child):
    """A forked child that has called this lives as long as the block."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        try:
            close_in_child()
            os.close(writing)
            os.read(reading, 1)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def accepts(port):
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def is_null_in_poor_child(number, close_in_child):
    """Whether the descriptor is /dev/null in a child that has none free before ``close_in_child``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        try:
            limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            with suppress(OSError):
                while True:
                    os.dup(0)
            close_in_child()
            os._exit(not os.path.samestat(os.fstat(number), os.stat(os.devnull)))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def raw_server(handler):
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_client_may_come_before_the_server():
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        early = asyncio.create_task(TcpStore.connect("127.0.0.1", port, soon()))
        await asyncio.sleep(0.03)  # a few refused attempts
        assert not early.done()
    async with await TcpStoreServer.start("127.0.0.1", port) as server, await early as store:
        await store.set("k", b"v")
        assert await server.store().get("k", soon()) == b"v"


async def test_no_server_by_the_deadline():
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        with pytest.raises(StoreTimeoutError, match=rf"127.0.0.1:{port} within 0.05 s.*refused"):
            await TcpStore.connect("127.0.0.1", port, Deadline(0.05))


async def test_without_descriptors_both_sides_say_to_raise_their_limit(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    advice = r"127\.0\.0\.1:1\b.*Too many open files.*raise the limit on open files: ulimit -n$"
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        with pytest.raises(DistStoreError, match=advice):
            await TcpStoreServer.start("127.0.0.1", 1)
        with pytest.raises(StoreTimeoutError, match=advice):
            await TcpStore.connect("127.0.0.1", 1, once=True)


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT], ids=errno.errorcode.get
)
async def test_a_client_that_may_not_connect_says_so_once_and_tries_on(monkeypatch, caplog, number):
    """A network's filter may refuse it until the server's process is ready."""
    reason = os.strerror(number)
    refusals = 0

    def refuse(self, *_):
        nonlocal refusals
        refusals += 1
        raise OSError(number, reason)

    async with await TcpStoreServer.start("127.0.0.1") as server:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "setsockopt", refuse)
            connecting = asyncio.create_task(TcpStore.connect("127.0.0.1", server.port))
            await until(lambda: refusals == 7)
            with pytest.raises(StoreTimeoutError, match=rf"{reason}\); see what this process may"):
                await TcpStore.connect("127.0.0.1", server.port, once=True)
        async with await connecting:
            assert [record.getMessage() for record in caplog.records] == [
                f"cannot connect to the store at 127.0.0.1:{server.port}: 127.0.0.1: {reason}; "
                "trying again (see what this process may do)"
            ]


async def test_an_address_is_found_where_no_thread_can_start(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        server = await TcpStoreServer.start("127.0.0.1")
        async with server, await TcpStore.connect("127.0.0.1", server.port) as store:
            await store.set("k", b"v")
        with pytest.raises(DistStoreError, match=r"'localhost' does not resolve.*start new thread"):
            await TcpStore.connect("localhost", 1)


async def test_name_that_does_not_resolve_fails_at_once():
    with pytest.raises(DistStoreError, match=r"'no-such-host\.invalid' does not resolve"):
        await TcpStore.connect("no-such-host.invalid", 1234, Deadline(300))
    with pytest.raises(DistStoreError, match="does not resolve"):
        await TcpStoreServer.start("bad..name")


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_impossible_port(port):
    with pytest.raises(InvalidUsageError, match="port"):
        await TcpStore.connect("127.0.0.1", port, soon())


async def test_no_host_does_not_mean_every_address():
    with pytest.raises(InvalidUsageError, match="not empty"):
        await TcpStoreServer.start("")


async def test_port_in_use_is_named(server):
    with pytest.raises(DistStoreError, match=rf"port {server.port} is in use.*choose another") as e:
        await TcpStoreServer.start("127.0.0.1", server.port)
    assert "another process of this job that was given rank 0, too" in str(e.value)


async def test_address_of_another_host():
    # 203.0.113.0/24 is reserved for documentation: no machine has it.
    with pytest.raises(DistStoreError, match="no address of this machine"):
        await TcpStoreServer.start("203.0.113.7")


async def test_server_listens_at_the_given_address_only(server):
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.2", server.port))


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
async def test_ipv6():
    try:
        server = await TcpStoreServer.start("::1")
    except DistStoreError:
        pytest.skip("no IPv6 loopback here")
    async with server, await TcpStore.connect("::1", server.port, soon()) as store:
        assert server.address == f"[::1]:{server.port}"
        assert await store.add("k", 1) == 1


async def test_http_client_is_refused_with_one_clear_line(server, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.read()
    writer.close()
    await writer.wait_closed()
    (record,) = caplog.records
    assert record.name == "aiodist.store"
    assert "refused a connection from 127.0.0.1" in record.getMessage()
    assert "HTTP client" in record.getMessage()


async def test_torch_client_is_refused_with_one_clear_line(server, caplog):
    torch_distributed = pytest.importorskip("torch.distributed")
    from datetime import timedelta

    def connect() -> None:
        torch_distributed.TCPStore(
            "127.0.0.1", server.port, is_master=False, timeout=timedelta(milliseconds=300)
        )

    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever torch says
        await asyncio.to_thread(connect)
    assert any("torch.distributed's TCPStore client" in r.getMessage() for r in caplog.records)


async def test_client_of_another_version_is_told(server, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"AIODIST-STORE 99\n")
    assert await reader.read() == b"AIODIST-STORE 1\n"
    writer.close()
    await writer.wait_closed()
    assert "version 99" in caplog.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no aiodist store: it is an HTTP server"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no aiodist store: it said b'SSH-2.0"),
        (b"AIODIST-STORE 7\n", "version 7 .* this side version 1"),
        (b"AIODIST-STORE 7\x1b[2J\rx\n", r"version '7\\x1b\[2J\\rx' of"),
        (b"", "no aiodist store: it closed the connection without a word"),
    ],
)
async def test_server_that_is_no_store(answer, message):
    async def handler(reader, writer):
        await reader.readline()
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    other, port = await raw_server(handler)
    async with other:
        with pytest.raises(DistStoreError, match=message) as caught:
            await TcpStore.connect("127.0.0.1", port, Deadline(300))
        assert not isinstance(caught.value, StoreTimeoutError)


async def test_torch_server_is_no_store():
    torch_distributed = pytest.importorskip("torch.distributed")
    other = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(DistStoreError, match="no aiodist store"):
        await TcpStore.connect("127.0.0.1", other.port, Deadline(0.2))


async def test_server_that_says_nothing():
    hanging = asyncio.Event()

    async def handler(reader, writer):
        await hanging.wait()
        writer.close()
        await writer.wait_closed()

    other, port = await raw_server(handler)
    async with other:
        with pytest.raises(StoreTimeoutError, match=r"said nothing: .*too few open files"):
            await TcpStore.connect("127.0.0.1", port, Deadline(0.05))
        hanging.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",  # a frame of 4 GiB
        b"\x00\x00\x00\x01\xc1",  # no msgpack
        b"\x00\x00\x00\x01\x07",  # no message
        b"\x00\x00\x00\x04\x92\x01\xa1x",  # an operation that does not exist
        b"\x00\x00\x00\x07\x93\x01\xa3get\x07",  # wrong arguments
        b"\x00\x00\x00\x08\x93\x01\xa3set\xa1k",  # too few arguments
    ],
)
async def test_bad_frames_cost_only_their_own_connection(server, caplog, sent):
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await greet_server(reader, writer, b"")
        writer.write(sent)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()
        await store.set("k", b"v")
    assert "dropped the client" in caplog.text


async def test_secret_is_known_to_both():
    async with (
        await TcpStoreServer.start("127.0.0.1", secret=b"ours") as server,
        await TcpStore.connect("127.0.0.1", server.port, soon(), secret=b"ours") as store,
    ):
        assert await store.add("k", 1) == 1


@pytest.mark.parametrize(("ours", "theirs"), [(b"a", b"b"), (b"a", b""), (b"", b"b")])
async def test_other_secret_is_refused_on_both_sides(caplog, ours, theirs):
    async with await TcpStoreServer.start("127.0.0.1", secret=ours) as server:
        with pytest.raises(DistStoreError, match="does not know this job's secret"):
            await TcpStore.connect("127.0.0.1", server.port, Deadline(300), secret=theirs)
        await until(lambda: "shown that it knows this job's secret" in caplog.text)


async def test_client_without_the_secret_asks_for_its_credential():
    async def seal():
        return b"sealed"

    async def learn(credential):
        assert credential == b"sealed"
        return b"ours"

    async with await TcpStoreServer.start("127.0.0.1", secret=b"ours", seal=seal) as server:
        async with await TcpStore.connect("127.0.0.1", server.port, soon(), learn=learn) as store:
            await store.set("k", b"v")
        async with await TcpStore.connect(
            "127.0.0.1", server.port, soon(), secret=b"ours"
        ) as store:
            assert await store.get("k", soon()) == b"v"


async def test_server_that_seals_nothing_tells_an_empty_credential(server):
    told = []

    async def learn(credential):
        told.append(credential)
        return b""

    async with await TcpStore.connect("127.0.0.1", server.port, soon(), learn=learn) as store:
        await store.set("k", b"v")
    assert told == [b""]


async def test_credential_over_the_limit_is_refused():
    async def seal():
        return b"x" * 4097

    async def learn(credential):
        return credential

    async with await TcpStoreServer.start("127.0.0.1", seal=seal) as server:
        with pytest.raises(DistStoreError, match="a credential of 4097 bytes"):
            await TcpStore.connect("127.0.0.1", server.port, soon(), learn=learn)


async def test_credential_that_is_not_trusted_ends_the_attempts(server):
    async def learn(credential):
        raise DistStoreError("not trusted")

    with pytest.raises(DistStoreError, match=r"^not trusted$"):
        await TcpStore.connect("127.0.0.1", server.port, soon(), learn=learn)


async def test_client_that_guesses_a_proof_gets_nothing(caplog):
    async with await TcpStoreServer.start("127.0.0.1", secret=b"ours") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = b"\x00\x00\x00\x08\x92\x01\xa5count"
        writer.write(b"AIODIST-STORE 1\n" + bytes(32 + 32) + request)
        assert len(await reader.read()) == len(b"AIODIST-STORE 1\n") + 32 + 32
        writer.close()
        await writer.wait_closed()
    assert "does not know this job's secret" in caplog.text


async def test_timeout_reaches_the_others_although_the_server_closes(server):
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        other = asyncio.create_task(exchange(store, 1, 3, b"", soon()))
        await until(lambda: "exchange/all" in server.table.watches)
        with pytest.raises(StoreTimeoutError, match="rank 0: rank 2 of 3 did not arrive"):
            await exchange(server.store(), 0, 3, b"", Deadline(0.05))
        await server.close()
        with pytest.raises(StoreTimeoutError, match="rank 1: rank 2 of 3 did not arrive"):
            await other


async def test_frame_over_the_limit_is_refused_before_it_is_sent(server):
    async with await TcpStore.connect("127.0.0.1", server.port, soon(), max_frame=1000) as store:
        with pytest.raises(DistStoreError, match="longer than the store takes"):
            await store.set("k", bytes(1000))
        await store.set("k", bytes(900))


async def test_answer_over_the_limit_is_an_error_of_that_call_alone():
    async with await TcpStoreServer.start("127.0.0.1", max_frame=1000) as server:
        await server.store().set("k", bytes(1000))
        async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
            with pytest.raises(DistStoreError, match="longer than the store takes"):
                await store.get("k", soon())
            assert await store.check(["k"])


async def test_a_key_that_is_no_counter_is_an_error_of_that_call_alone(server):
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        await store.set("k", b"text")
        with pytest.raises(DistStoreError, match="key 'k' is no counter"):
            await store.add("k", 1)
        assert await store.get("k", soon()) == b"text"


async def test_lost_connection_fails_all_calls_under_way(server):
    store = await TcpStore.connect("127.0.0.1", server.port, soon())
    calls = [
        asyncio.create_task(store.get("absent", Deadline.never())),
        asyncio.create_task(store.wait(["a", "b"], soon())),
    ]
    await store.set("k", b"")
    await server.close()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, DistStoreError)
        assert not isinstance(error, StoreTimeoutError)
        assert f"127.0.0.1:{server.port} was lost" in str(error)
    with pytest.raises(DistStoreError, match="was lost"):
        await store.add("k", 1)
    await store.close()


async def test_close_fails_calls_under_way_and_later_ones(server):
    store = await TcpStore.connect("127.0.0.1", server.port, soon())
    call = asyncio.create_task(store.get("absent", Deadline.never()))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(DistStoreError, match="closed on this side"):
        await call
    with pytest.raises(DistStoreError, match="closed on this side"):
        await store.num_keys()


async def test_a_wait_that_is_cancelled_while_the_store_closes_is_cancelled(server):
    store = await TcpStore.connect("127.0.0.1", server.port, soon())
    waiting = asyncio.create_task(store.get("absent", Deadline.never()))
    await until(lambda: server.table.watches)
    waiting.cancel()
    await store.close()
    assert waiting.cancelled()


async def test_close_in_another_loop_ends_the_connection_in_its_own(server):
    store = await TcpStore.connect("127.0.0.1", server.port, soon())
    call = asyncio.create_task(store.get("absent", Deadline.never()))
    await asyncio.sleep(0)
    closing = asyncio.wait_for(store.close(), soon().timeout)
    await asyncio.to_thread(asyncio.run, closing)
    with pytest.raises(DistStoreError, match="closed on this side"):
        await call


def test_close_in_another_loop_does_not_wait_for_its_own_which_does_not_run():
    home = asyncio.new_event_loop()
    server = home.run_until_complete(TcpStoreServer.start("127.0.0.1"))
    store = home.run_until_complete(TcpStore.connect("127.0.0.1", server.port, soon()))
    asyncio.run(asyncio.wait_for(store.close(), soon().timeout))
    home.run_until_complete(store.close())
    home.run_until_complete(server.close())
    home.close()
    asyncio.run(store.close())


async def test_server_forgets_waits_that_were_cancelled_timed_out_or_lost(server):
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        task = asyncio.create_task(store.get("a", soon()))
        await until(lambda: server.table.watches)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StoreTimeoutError):
            await store.get("b", Deadline(0.01))
        assert await store.num_keys() == 0  # answered after the cancellation was read
        assert server.table.watches == {}
        assert store._calls == {}
        lost = asyncio.create_task(store.get("c", soon()))
        await until(lambda: server.table.watches)
    with pytest.raises(DistStoreError):
        await lost
    await until(lambda: not server.table.watches)


async def test_a_client_that_computes_before_its_proof_is_not_cut_off(server, monkeypatch):
    monkeypatch.setattr(tcp_server, "_GREETING_SECONDS", 0.1)

    class Busy:
        """Reads the server's challenge later than a stranger may."""

        def __init__(self, reader):
            self._reader = reader

        def __getattr__(self, name):
            return getattr(self._reader, name)

        async def readexactly(self, count):
            if count > 8:
                await asyncio.sleep(0.3)
            return await self._reader.readexactly(count)

    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await greet_server(Busy(reader), writer, b"")
    await until(lambda: len(server._clients) == 1)
    await asyncio.sleep(0.2)
    assert not reader.at_eof()
    writer.close()


async def test_mute_server_is_noticed():
    async def handler(reader, writer):
        await await_proof(reader, await answer_client(reader, writer, b""))
        await reader.read()
        writer.close()
        await writer.wait_closed()

    other, port = await raw_server(handler)
    async with (
        other,
        await TcpStore.connect("127.0.0.1", port, soon(), call_timeout=0.02) as store,
    ):
        with pytest.raises(DistStoreError, match=r"did not answer 'add' within 0\.02 s"):
            await store.add("k", 1)


async def test_port_is_free_once_the_expected_clients_are_connected():
    async with await TcpStoreServer.start("127.0.0.1", expected_clients=2) as server:
        one = await TcpStore.connect("127.0.0.1", server.port, soon())
        two = await TcpStore.connect("127.0.0.1", server.port, soon())
        await two.set("k", b"v")  # answered, so greeted
        async with await TcpStoreServer.start("127.0.0.1", server.port):
            assert await one.get("k", soon()) == b"v"
        await one.close()
        await two.close()
    async with (
        await TcpStoreServer.start("127.0.0.1", expected_clients=0) as server,
        await TcpStoreServer.start("127.0.0.1", server.port),
    ):
        pass


async def test_a_server_that_stays_open_lets_a_client_come_again():
    async with await TcpStoreServer.start(
        "127.0.0.1", expected_clients=1, stays_open=True
    ) as server:
        for _ in range(2):
            async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
                await store.set("k", b"v")
        server.stop_accepting()
        async with await TcpStoreServer.start("127.0.0.1", server.port):
            pass


async def test_two_jobs_in_a_row_on_one_port():
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    size = 4

    async def rank_main(rank: int) -> list[list[bytes]]:
        seen = []
        for round_ in range(3):
            server = None
            if rank == 0:
                server = await TcpStoreServer.start("127.0.0.1", port, expected_clients=size - 1)
                base = server.store()
            else:
                base = await TcpStore.connect("127.0.0.1", port, soon())
            store = await join(base, rank, size, soon())
            seen.append(await exchange(store, rank, size, b"%d/%d" % (round_, rank), soon()))
            assert await leave(store, rank, size, soon())
            await base.close()
            if server is not None:
                await server.close()
        return seen

    expected = [[b"%d/%d" % (k, r) for r in range(size)] for k in range(3)]
    assert await asyncio.gather(*map(rank_main, range(size))) == [expected] * size


def test_the_store_runs_on_uvloop_too():
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with await TcpStoreServer.start("localhost") as server:
            await check_store(lambda: TcpStore.connect("localhost", server.port, soon()))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


CHILD = """
import asyncio, sys
from aiodist.deadline import Deadline
from aiodist.store import TcpStoreServer

async def main():
    async with await TcpStoreServer.start("127.0.0.1") as server:
        print(server.port, flush=True)
        await server.store().set("hello", b"from the child")
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_server_process_that_is_killed():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdout=PIPE)
    try:
        port = int(await child.stdout.readline())
        async with await TcpStore.connect("127.0.0.1", port, soon()) as store:
            assert await store.get("hello", soon()) == b"from the child"
            waiting = asyncio.create_task(store.get("absent", soon()))
            await store.num_keys()
            child.kill()
            with pytest.raises(DistStoreError, match="was lost"):
                await waiting
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_a_will_comes_to_be_when_the_connection_breaks(server):
    async with (
        await TcpStore.connect("127.0.0.1", server.port, soon()) as doomed,
        await TcpStore.connect("127.0.0.1", server.port, soon()) as heir,
    ):
        assert await doomed.set_will("last words", b"adieu")
        waiting = asyncio.create_task(heir.get("last words", soon()))
        doomed._writer.transport.abort()
        assert await waiting == b"adieu"


async def test_a_server_that_ends_in_good_order_is_not_bereft_of(server):
    clients = [await TcpStore.connect("127.0.0.1", server.port, soon()) for _ in range(2)]
    for client in clients:
        await client.set_will("lost", b"1")
    table = server.store()
    await server.close()
    for client in clients:
        with pytest.raises(DistStoreError, match="the other side closed it"):
            await client.get("k", soon())
        assert client.lost_server is None
        await client.close()
    assert not await table.check(["lost"]), "that of the first would be news to the second"


async def test_a_server_that_dies_leaves_its_clients_bereft(server):
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as client:
        await client.set_will("lost", b"1")
        assert client.lost_server is None
        for writer in server._tasks.values():
            writer.transport.abort()
        with pytest.raises(DistStoreError, match="was lost"):
            await client.get("k", soon())
        assert client.lost_server == (socket.gethostname(), os.getpid())
    assert client.lost_server is None  # closed on this side


async def test_frames_are_sent_at_once(server):
    """Else a request behind one that waits is sent 40 ms later: the other side acknowledges late."""
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        await store.num_keys()
        for writer in (store._writer, *server._tasks.values()):
            sock = writer.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_store_whose_reader_was_cancelled_raises_at_once(server):
    """The end of a loop cancels all tasks at once: those that tidy up must not wait for an answer."""
    async with await TcpStore.connect("127.0.0.1", server.port, soon()) as store:
        waiting = asyncio.ensure_future(store.get("absent", soon()))
        await store.num_keys()
        store._task.cancel()
        with pytest.raises(DistStoreError, match="closed on this side"):
            await waiting
        async with asyncio.timeout(20):
            with pytest.raises(DistStoreError, match="closed on this side"):
                await store.set("key", b"")


async def test_another_event_loop_is_refused_and_told_the_way(server):
    client = await TcpStore.connect("127.0.0.1", server.port)
    await client.set("key", b"value")
    for call in (client.get("key"), client.set("key", b"other"), client.wait(["missing"])):
        with pytest.raises(InvalidUsageError, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(asyncio.run, asyncio.wait_for(call, scaled(5)))
    assert await client.get("key") == b"value"
    await client.close()
