"""Queries between hosts need the key; a client without it gets no answer and blocks no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from aiodist.accept_loop import PAUSE_SECONDS
from aiodist.errors import HandshakeError, ProtocolError
from aiodist.links.rank_info import RankInfo
from aiodist.observe import server as server_module
from aiodist.observe.asking import Place, ask_job, ask_ranks, jobs_here
from aiodist.observe.clock import align
from aiodist.observe.observer import Observer
from aiodist.observe.query_protocol import (
    _AT_ONCE,
    LONGEST_ANSWER,
    LONGEST_QUESTION,
    JobCredentials,
    Line,
    all_at_once,
    ask_all,
    ask_here,
    ask_there,
    connected,
)
from aiodist.observe.rank_report import ObservedGroup, decode_report
from aiodist.observe.recorder import Recorder, UnderWay
from aiodist.observe.server import Server, socket_name
from tests.certificates import tls_files
from tests.limits import scaled
from tests.test_credentials import tls_environ

KEY = os.urandom(32)  # of this process: its names on the machine are its own


class Quiet:
    """A rank that has done nothing."""

    recorder = Recorder()
    groups: Sequence[ObservedGroup] = ()

    def under_way(self) -> Sequence[UnderWay]:
        return ()


def observer(
    rank: int, hosts: Sequence[str] = ("here", "there"), environ: Mapping[str, str] | None = None
) -> Observer:
    cards = [
        RankInfo(number, f"host {host}", host, 1000 + number, ())
        for number, host in enumerate(hosts)
    ]
    return Observer(Quiet(), rank, cards, KEY, environ or {})


@contextmanager
def answering(*observers: Observer, host: str | None = "127.0.0.1") -> Iterator[list[Server]]:
    servers = [Server(each, host) for each in observers]
    addresses = {rank: server.address for rank, server in enumerate(servers) if server.address}
    for rank, server in enumerate(servers):
        server.start({other: at for other, at in addresses.items() if other != rank})
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def place(one: Observer) -> Place:
    (found,) = (p for p in jobs_here()[one.identity.job] if p.rank == one.identity.rank)
    return found


async def elsewhere(function: Any, *args: Any) -> Any:
    return await asyncio.to_thread(partial(function, *args))


async def test_a_rank_answers_here_and_there() -> None:
    one, two = observer(0), observer(1)
    with answering(one, two) as (server, _):
        here = await elsewhere(ask_here, place(one).name, {"ask": "part"}, 5)
        there = await elsewhere(ask_there, server.address, one.credentials, {"ask": "part"}, 5)
        assert decode_report(here).identity == decode_report(there).identity == one.identity
        ranks = await elsewhere(ask_here, place(one).name, {"ask": "ranks"}, 5)
        assert json.loads(ranks)[1]["host"] == "host there"


async def test_a_question_without_the_key_gets_no_answer() -> None:
    one = observer(0)
    with answering(one) as (server,):
        with pytest.raises(HandshakeError):
            await elsewhere(
                ask_there, server.address, JobCredentials(b"another" * 5), {"ask": "part"}, 5
            )
        assert await elsewhere(ask_there, server.address, one.credentials, {"ask": "clock"}, 5)


async def test_by_tls_where_the_job_has_certificates() -> None:
    one = observer(0, environ=tls_environ())
    others = [
        JobCredentials(one.credentials.key),
        JobCredentials(one.credentials.key, tls_files("another job's")),
    ]
    with answering(one) as (server,):
        there = await elsewhere(ask_there, server.address, one.credentials, {"ask": "part"}, 5)
        assert decode_report(there).identity == one.identity
        for credentials in others:  # they know the key, and that is not enough
            with pytest.raises((OSError, EOFError)):
                await elsewhere(ask_there, server.address, credentials, {"ask": "clock"}, 5)
        assert await elsewhere(ask_there, server.address, one.credentials, {"ask": "clock"}, 5)


async def test_an_eavesdropper_reads_nothing() -> None:
    one = observer(0, environ=tls_environ())
    passed: list[bytes] = []

    def forward(here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                passed.append(data)
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)

    def between(listener: socket.socket, address: str) -> None:
        host, _, port = address.rpartition(":")
        near, _ = listener.accept()
        with near, socket.create_connection((host, int(port)), 5) as far:
            all_at_once({0: partial(forward, near, far), 1: partial(forward, far, near)})

    with answering(one) as (server,), socket.create_server(("127.0.0.1", 0)) as listener:
        relaying = asyncio.create_task(elsewhere(between, listener, server.address))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        told = await elsewhere(ask_there, address, one.credentials, {"ask": "ranks"}, 5)
        await relaying
    assert b"host there" in told
    assert b"host there" not in b"".join(passed)
    assert b"ranks" not in b"".join(passed)


async def test_closing_ends_a_connection_that_is_secured() -> None:
    one = observer(0, environ=tls_environ())

    def hang_on(address: str, connected_now: threading.Event) -> None:
        with connected(address, one.credentials, 30) as line:
            connected_now.set()
            line.receive(LONGEST_ANSWER)

    now = threading.Event()
    with answering(one) as (server,):
        hanging = asyncio.create_task(elsewhere(hang_on, server.address, now))
        await elsewhere(now.wait, 20)
    with pytest.raises((OSError, EOFError)):
        await hanging


async def test_an_answer_without_the_key_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> bytes:
            sock, _ = listener.accept()
            with sock:
                sock.recv(32)
                sock.sendall(bytes(64))
                return sock.recv(1)

        heard = asyncio.create_task(asyncio.to_thread(impostor))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(HandshakeError):
            await elsewhere(ask_there, address, JobCredentials(KEY), {"ask": "part"}, 5)
        assert await heard == b""


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200), b"\xff" * 5000])
async def test_garbage_ends_the_connection_and_the_next_question_is_answered(
    garbage: bytes,
) -> None:
    one = observer(0)

    def stranger(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 5) as sock:
            try:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                data = b""
                while chunk := sock.recv(4096):
                    data += chunk
            except OSError:  # closed on us while we talked
                return b""
            return data

    with answering(one) as (server,):
        # At most a nonce and a proof, which say nothing to those without the key.
        assert len(await elsewhere(stranger, server.address)) <= 64
        assert await elsewhere(ask_there, server.address, one.credentials, {"ask": "clock"}, 5)


async def ask_in_vain(question: bytes) -> None:
    """Ask a rank ``question``, to which there is no answer; then one to which there is."""
    one = observer(0)

    def ask(address: str) -> bytes:
        with connected(address, one.credentials, 5) as line:
            line.tell(question)
            return line.receive(LONGEST_ANSWER)

    with answering(one) as (server,):
        with pytest.raises((EOFError, ConnectionError)):
            await elsewhere(ask, server.address)
        assert await elsewhere(ask_there, server.address, one.credentials, {"ask": "clock"}, 5)


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"not json",
        b"[]",
        b'{"ask": "secrets"}',
        b'{"ask": "relay", "ranks": 1}',
        b"[" * 60000,  # too deep for some versions of Python
    ],
)
async def test_an_unknown_query_ends_the_connection(question: bytes) -> None:
    await ask_in_vain(question)


@pytest.mark.parametrize(
    "question",
    [
        b'{"ask": "usage", "seconds": Infinity}',
        b'{"ask": "relay", "ranks": [[]], "seconds": 1.0, "to": {"ask": "part"}}',
    ],
    ids=["infinite", "no rank"],
)
async def test_a_question_that_cannot_be_answered_is_not_the_last(
    question: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await ask_in_vain(question)
    assert "a question about this rank has no answer" in caplog.text


async def test_a_rank_without_a_free_descriptor_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection that it cannot accept stays where it is, and ready."""

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            raise OSError(errno.EMFILE, "Too many open files")

    pauses: list[float] = []
    monkeypatch.setattr(server_module, "sleep", pauses.append)
    one = observer(0)
    server = Server(one, None)
    with Exhausted(socket.AF_UNIX) as listener:
        server._serve(listener)
    server.close()
    assert pauses == [PAUSE_SECONDS]


def test_a_message_that_is_too_long_is_refused_before_memory_is_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((LONGEST_QUESTION + 1).to_bytes(4, "big"))
        with pytest.raises(ProtocolError, match="is the most"):
            Line(ours, 5).receive(LONGEST_QUESTION)


def test_a_line_is_over_when_its_time_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Line(ours, 0.05)
        with pytest.raises(TimeoutError):
            line.receive(10)
        theirs.sendall(b"too late")
        with pytest.raises(TimeoutError):
            line.receive(10)


@contextmanager
def full(name: str) -> Iterator[socket.socket]:
    """A listener that has not accepted the one connection that waits there: it takes no more."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind("\0" + name)
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect("\0" + name)
        yield listener


def test_a_rank_with_as_many_questions_as_it_takes_is_silent() -> None:
    name = f"aiodist-why/test-{os.getpid()}"
    with full(name):
        answers = ask_ranks([Place(name, 0, os.getpid())], {"ask": "part"}, bytes, 0.1)
    assert "said nothing for 0.05 s: native code may hold the GIL" in answers.silent[0]


def test_a_question_waits_until_those_before_it_have_been_accepted() -> None:
    name = f"aiodist-why/test-{os.getpid()}"
    with full(name) as listener, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_here, name, {}, scaled(20))
        listener.accept()[0].close()  # the one that fills it
        with Line(listener.accept()[0], scaled(20)) as line:
            assert line.receive(10) == b"{}"
            line.tell(b"an answer")
        assert asked.result() == b"an answer"


async def test_ranks_on_another_host_are_asked_by_way_of_one_here() -> None:
    one, two = observer(0), observer(1)
    with answering(one, two):
        answers = await elsewhere(ask_job, one.identity.job, [place(one)], 5)
    assert sorted(answers.parts) == [0, 1]
    assert answers.parts[1].identity == two.identity
    assert answers.silent == {}


async def test_ranks_that_have_gone_are_named() -> None:
    one = observer(0, ["here", "here", "there"])
    with answering(one) as (server,):
        server._addresses = {2: "127.0.0.1:1"}  # no process listens at port 1
        answers = await elsewhere(ask_job, one.identity.job, [place(one)], 5)
    assert sorted(answers.parts) == [0]
    assert "process 1001 on host here has ended" in answers.silent[1]
    assert "process 1002 on host there: " in answers.silent[2]
    assert "refused" in answers.silent[2]


async def test_a_rank_learns_how_far_the_first_ranks_clock_is() -> None:
    one, two = observer(0), observer(1)
    with answering(one, two):
        while not two.samples:  # noqa: ASYNC110  # its thread has asked
            await asyncio.sleep(0.001)
    assert [(sample.offset, sample.error) for sample in one.samples] == [(0, 0)]
    (sample,) = two.samples
    # Both are one clock in truth: what it says is wrong by no more than it admits.
    assert abs(sample.offset) <= sample.error
    parts = {0: one.part("test"), 1: two.part("test")}
    assert align(parts)[1].error == sample.error


async def test_a_closed_server_leaves_its_name() -> None:
    one = observer(0)
    with answering(one, host=None):
        assert one.identity.job in jobs_here()
    assert one.identity.job not in jobs_here()
    with answering(one, host=None):
        assert place(one).name == socket_name(os.geteuid(), one.identity.job, 0, 1000)


def test_calls_at_once_keep_their_errors_apart() -> None:
    def fail() -> int:
        raise ValueError("no")

    answers = all_at_once({1: lambda: 5, 2: fail})
    assert answers[1] == 5
    assert isinstance(answers[2], ValueError)
    assert all_at_once({}) == {}


def test_many_silent_ranks_take_no_longer_than_one() -> None:
    def silent(time_limit: float) -> int:
        time.sleep(time_limit)
        raise TimeoutError

    def slow(
        time_limit: float,
    ) -> int:  # answers if it is given half a second, as in the second part
        if time_limit < 0.5:
            raise TimeoutError
        return 5

    count = 3 * _AT_ONCE
    began = time.monotonic()
    answers = ask_all({**dict.fromkeys(range(count), silent), count: slow}, 2.0)
    assert time.monotonic() - began < scaled(2.0) + 1
    assert len(answers) == count + 1
    assert isinstance(answers[0], TimeoutError)
    assert ask_all({**dict.fromkeys(range(count), lambda _: 1), count: slow}, 2.0)[count] == 5
    assert ask_all({}, 1.0) == {}


async def test_a_rank_that_ends_after_its_first_answer_gives_no_traceback() -> None:
    one = observer(0)
    answered = threading.Event()

    def answer_once(listener: socket.socket) -> None:
        for _ in range(2):
            sock, _ = listener.accept()
            with Line(sock, 5) as line:
                line.receive(LONGEST_QUESTION)
                if not answered.is_set():
                    line.tell(one.part("asked").encode())
                answered.set()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + socket_name(os.geteuid(), one.identity.job, 0, os.getpid()))
        listener.listen()
        answering_once = asyncio.create_task(asyncio.to_thread(answer_once, listener))
        answers = await elsewhere(ask_job, one.identity.job, [place(one)], 5)
        await answering_once
    assert sorted(answers.parts) == [0]
