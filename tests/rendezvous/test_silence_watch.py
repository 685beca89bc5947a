"""Ranks that are stopped inside ``init_process_group``, and ranks that are only busy there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import PeerLostError
from aiodist.rendezvous import silence_watch
from aiodist.rendezvous.silence_watch import (
    BEATS,
    HeartbeatStore,
    Opening,
    SilenceWatch,
    in_file,
    over_tcp,
    over_tcp_served,
)
from aiodist.store import MemoryStore
from aiodist.store.participants import Participant
from tests.limits import scaled, thread_ends, until
from tests.rendezvous.test_loss_watch import MISSING, ROOT, address
from tests.test_credentials import tls_environ

TIMEOUT = 2.0
LEAVING = 3.0
"""Seconds in which a rank leaves a file store whose lock it cannot get, with both of its handles."""
KNOWN = 2 * TIMEOUT
"""Seconds in which all ranks know, also on a busy machine; the fault matrix insists on the promise."""

PROGRAM = """
import asyncio, contextlib, os, signal, sys, threading, time
import aiodist as dist
from aiodist.rendezvous import meeting
from aiodist.store.filelog import FileLog
from tests.rendezvous.forks import fork_ranks

url, size, victim, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ranks = [int(rank) for rank in sys.argv[5:]]
gate, locked = threading.Lock(), FileLog.locked

@contextlib.contextmanager
def gated(log, *, exclusive):
    with gate, locked(log, exclusive=exclusive) as held:
        yield held

def strike_in_there(say):
    arrive = meeting.exchange

    async def struck(store, rank, size, value, deadline, *, name="exchange", **stops):
        # Once all others that come are in there: what they know then is what they were told.
        await store.wait([f"{name}/{other}" for other in ranks if other != rank], deadline)
        if how == "busy":
            begin = time.monotonic()
            while time.monotonic() < begin + 2.5 * float(os.environ["AIODIST_LIVENESS_TIMEOUT"]):
                sum(range(1000))  # its loop has no turn meanwhile
        else:
            log = FileLog(url.removeprefix("file://"))
            with gate, contextlib.ExitStack() as stack:  # none of its threads holds the lock
                if how == "locked":
                    log.open()
                    stack.callback(log.close)
                    while not stack.enter_context(locked(log, exclusive=True)):
                        time.sleep(0.001)  # another rank has it
                say(struck=time.monotonic())
                os.kill(os.getpid(), signal.SIGSTOP)
        return await arrive(store, rank, size, value, deadline, name=name, **stops)

    meeting.exchange, FileLog.locked = struck, gated

async def train(rank):
    await dist.init_process_group(init_method=url, rank=rank, world_size=size, timeout=90)
    await dist.barrier()
    await dist.destroy_process_group()

def live(rank, say):
    if rank == victim:
        strike_in_there(say)
    try:
        asyncio.run(train(rank))
    finally:
        say(ended=time.monotonic())

def hear(told):
    ended = [rank for rank in ranks if rank != victim and "descriptors" in told[rank]]
    if how != "busy" and len(ended) == len(ranks) - 1:
        os.kill(told[victim]["pid"], signal.SIGCONT)

fork_ranks(ranks, live, hear)
"""


def run(url: str, size: int, victim: int, how: str, ranks: range, **more: str) -> list[Any]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, str(size), str(victim), how, *map(str, ranks)],
        env=os.environ | {"AIODIST_LIVENESS_TIMEOUT": str(TIMEOUT)} | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    told: list[Any] = json.loads(found.stdout)
    return told


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("medium", "victim"),
    [
        ("tcp", 1),
        ("tcp", 0),
        pytest.param("tls", 1, marks=pytest.mark.extended),
        pytest.param("tls", 0, marks=pytest.mark.extended),
        ("file", 1),
        pytest.param("file", 0, marks=pytest.mark.extended),
    ],
)
def test_a_rank_that_is_stopped_while_ranks_meet_is_lost_to_all_and_learns_it_later(
    medium: str, victim: int, port: int, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    url = address("file" if medium == "file" else "tcp", port, tmp_path)
    more = tls_environ() if medium == "tls" else {}
    told = run(url, 4, victim, "stopped", range(3), **more)
    struck = told[victim]
    name = f"rank {victim} (process {struck['pid']} on {socket.gethostname()})"
    for rank, said in enumerate(told):
        assert said.get("error") == "PeerLostError", said
        assert said["descriptors"] == 0, said
        fields, text = said["fields"], said["text"]
        assert fields["rank"] == victim
        assert (fields["pid"], fields["host"]) == (struck["pid"], socket.gethostname())
        assert name in text
        assert "nothing was heard of it for 2 s" in text
        assert fields["noticed_by"] in {0, 1, 2} - {victim}
        assert MISSING in fields["not_arrived"]
        if rank == victim:
            assert f"{name} is this rank, and was given up by the others" in text
        else:
            assert "fell silent inside init_process_group" in text
            assert said["ended"] - struck["struck"] < scaled(KNOWN)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.extended)])
def test_a_rank_that_is_stopped_with_the_lock_of_the_file_is_lost_to_all(
    victim: int, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    told = run(address("file", 0, tmp_path), 4, victim, "locked", range(3))
    for said in told:
        assert said.get("error") == "PeerLostError", said
        assert said["descriptors"] == 0, said
        if said["rank"] != victim:
            assert said["fields"]["rank"] == victim, said
            assert f"rank {victim} (process {told[victim]['pid']} on " in said["text"]
            assert "where it holds the lock of the store's file" in said["text"]
            assert said["ended"] - told[victim]["struck"] < scaled(KNOWN + LEAVING)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("medium", "victim"),
    [("tcp", 1), pytest.param("tcp", 0, marks=pytest.mark.extended), ("file", 1)],
)
def test_a_rank_that_computes_in_there_is_waited_for(
    medium: str, victim: int, port: int, tmp_path: Path
) -> None:
    told = run(
        address(medium, port, tmp_path),
        3,
        victim,
        "busy",
        range(3),
        AIODIST_LIVENESS_TIMEOUT="1",
    )
    assert ["error" in said for said in told] == [False] * 3, told


Begin = Callable[..., Awaitable[tuple[SilenceWatch, str, "asyncio.Queue[PeerLostError]"]]]


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """Begins the watch of a rank of three; it ends with the test."""
    begun: list[SilenceWatch] = []

    async def beginning(
        rank: int, opening: Opening, told: str = "", silence_limit: float = 60.0
    ) -> tuple[SilenceWatch, str, asyncio.Queue[PeerLostError]]:
        losses: asyncio.Queue[PeerLostError] = asyncio.Queue()
        watch = SilenceWatch(opening, rank, 3, silence_limit, losses.put_nowait, star=True)
        begun.append(watch)
        return watch, await watch.begin(told, Deadline(20)), losses

    yield beginning
    for watch in begun:
        await watch.end()


async def test_a_rank_0_whose_kernel_alone_takes_connections_is_silent(begin: Begin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        told = str(stopped.getsockname()[1])
        _, _, losses = await begin(1, partial(over_tcp, "127.0.0.1", b"", None), told, 0.5)
        error = await losses.get()
    assert (error.rank, error.noticed_by) == (0, 1)
    assert "rank 0 fell silent inside init_process_group, where it serves the store" in str(error)


async def test_where_a_second_port_is_refused_a_rank_goes_on_unwatched(
    begin: Begin, port: int
) -> None:
    watch, _, losses = await begin(1, partial(over_tcp, "127.0.0.1", b"", None), str(port))
    assert 0 not in watch._deadlines
    assert losses.empty()


async def test_arrivals_are_reported_and_leaving_ranks_are_not_missed(begin: Begin) -> None:
    served = partial(over_tcp_served, "127.0.0.1", b"of the job", None)
    joined = partial(over_tcp, "127.0.0.1", b"of the job", None)
    hub, told, losses = await begin(0, served, silence_limit=5.0)
    first, _, _ = await begin(1, joined, told, 5.0)
    await until(lambda: first.absent == [2])
    last, _, _ = await begin(2, joined, told, 5.0)
    await until(lambda: hub.absent == first.absent == last.absent == [])
    await until(lambda: 1 in hub._deadlines and 2 in hub._deadlines)
    await first.end()
    await until(lambda: 1 not in hub._deadlines)
    assert 2 in hub._deadlines
    assert losses.empty()


async def test_a_rank_whose_watch_may_have_no_thread_goes_on_at_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(silence_watch, "_SERVE_SECONDS", 1000.0)
    async with asyncio.timeout(scaled(5)):
        _, told, losses = await begin(0, partial(over_tcp_served, "127.0.0.1", b"", None))
    assert told == ""
    assert losses.empty()


def test_the_watch_of_a_loop_that_has_ended_ends() -> None:
    async def begin() -> None:
        served = partial(over_tcp_served, "127.0.0.1", b"", None)
        watch = SilenceWatch(served, 0, 3, 0.5, lambda _: None, star=True)
        assert await watch.begin("", Deadline(20))

    asyncio.run(begin())
    thread_ends("aiodist-watch")


async def test_a_silent_rank_is_lost_also_where_no_peer_can_be_told() -> None:
    store = MemoryStore()
    await store.close()
    watch = SilenceWatch(
        partial(over_tcp_served, "127.0.0.1", b"", None), 0, 3, 5.0, lambda _: None, star=True
    )
    watch._store = HeartbeatStore(store, "")
    assert "who else had arrived is not known" in str(watch.loss_of(2))
    watch._deadlines.watch(2, time.monotonic() - 100)
    error = await watch._find_silent_rank()
    assert error is not None
    assert (error.rank, error.noticed_by) == (2, 0)
    await watch.end()


async def test_a_rank_that_cannot_read_names_only_what_holds_the_lock_at_each_check(
    tmp_path: Path,
) -> None:
    holders: list[Participant] = []
    watch = SilenceWatch(
        partial(in_file, tmp_path / "meeting", 0), 0, 3, 5.0, lambda _: None, star=False
    )
    watch._store = HeartbeatStore(MemoryStore(), "", lambda: holders)
    watch._deadlines.watch(2, time.monotonic() - 100)
    watch._looked -= 100

    checks = [[], *[[held_by(1)], [held_by(2)]] * BEATS, *[[held_by(0)]] * BEATS]
    for holders[:] in checks:
        assert await watch._find_silent_rank() is None
    holders[:] = [held_by(1), held_by(0)]
    errors = [await watch._find_silent_rank() for _ in range(BEATS // 2)]
    assert [error and error.rank for error in errors] == [None] * (BEATS // 2 - 1) + [1]
    await watch.end()


def held_by(rank: int) -> Participant:
    return replace(Participant.current(rank), pid=1000 + rank)


async def test_missing_ranks_are_read_before_the_file_is_out_of_reach(tmp_path: Path) -> None:
    """A stopped process may hold its lock."""
    watch = SilenceWatch(
        partial(in_file, tmp_path / "meeting", 0), 0, 3, 60.0, lambda _: None, star=False
    )
    try:
        await watch.begin("told", Deadline(20))
        await until(lambda: watch.absent == [1, 2])
        error = watch.loss_of(1)
        assert error.not_arrived == (2,)
        assert "of 3 ranks 2 had not arrived when that was last looked for" in str(error)
    finally:
        await watch.end()
