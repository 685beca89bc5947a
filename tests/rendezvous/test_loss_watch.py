"""Ranks that die or give up inside ``init_process_group``: real processes, and tasks of one loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError, PeerLostError, StoreTimeoutError
from aiodist.rendezvous import Rendezvous, meeting, rendezvous
from aiodist.rendezvous.loss_watch import LossWatch
from aiodist.rendezvous.meeting_stores import MeetingStore
from aiodist.rendezvous.silence_watch import SilenceWatch, over_tcp
from aiodist.store import MemoryStore, Store, exchange
from aiodist.wire.failures import encode_error

ROOT = Path(__file__).parents[2]
PROMISED = 1.0
"""Seconds in which all ranks know."""
MISSING = 3

PROGRAM = """
import asyncio, os, signal, sys, time
import aiodist as dist
from aiodist.api import lifecycle
from aiodist.rendezvous import meeting
from tests.rendezvous.forks import fork_ranks

url, size, victim, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ranks = [int(rank) for rank in sys.argv[5:]]

def die_in(place, wanted, say):
    # Once all others that come are in there: what they know then is what they were told.
    exchange = place.exchange

    async def dying(store, rank, size, value, deadline, *, name="exchange", **stops):
        if name != wanted:
            return await exchange(store, rank, size, value, deadline, name=name, **stops)
        keys = [f"{name}/{other}" for other in ranks if other != rank]
        await store.wait(keys, deadline)
        say(died=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    place.exchange = dying

def live(rank, say):
    if rank == victim:
        place, name = {"arriving": (meeting, "exchange"), "rank_infos": (lifecycle, "rank_infos")}[step]
        die_in(place, name, say)
    try:
        asyncio.run(dist.init_process_group(init_method=url, rank=rank, world_size=size, timeout=90))
    finally:
        say(ended=time.monotonic())

fork_ranks(ranks, live)
"""


def address(medium: str, port: int, tmp_path: Path) -> str:
    return f"tcp://127.0.0.1:{port}" if medium == "tcp" else f"file://{tmp_path}/meet"


@pytest.mark.parametrize(
    ("medium", "victim", "step", "size"),
    [
        ("tcp", 1, "arriving", 4),
        ("tcp", 0, "arriving", 4),
        ("env", 2, "arriving", 4),
        ("tcp", 1, "rank_infos", 2),
        ("tcp", 0, "rank_infos", 3),
        ("file", 1, "arriving", 4),
        ("file", 0, "arriving", 4),
        ("file", 0, "rank_infos", 2),
    ],
)
def test_a_rank_that_is_killed_in_there_is_known_to_all(
    medium: str,
    victim: int,
    step: str,
    size: int,
    port: int,
    tmp_path: Path,
    scaled: Callable[[float], float],
) -> None:
    # One rank never comes where the others have only arrived; it is named as well.
    ranks = range(size - 1) if step == "arriving" else range(size)
    url = address("tcp" if medium == "env" else medium, port, tmp_path)
    if medium == "env":
        url = "env://"
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, str(size), str(victim), step, *map(str, ranks)],
        env=os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(25),
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    told: list[dict[str, Any]] = json.loads(found.stdout)
    died = told[victim]
    for said in told:
        if said["rank"] == victim:
            continue
        assert said.get("error") == "PeerLostError", said
        assert said["descriptors"] == 0, said
        fields, text = said["fields"], said["text"]
        assert fields["rank"] == victim
        assert (fields["pid"], fields["host"]) == (died["pid"], socket.gethostname())
        assert f"rank {victim} (process {died['pid']} on {socket.gethostname()})" in text
        assert "inside init_process_group" in text
        keeper_died = victim == 0 and medium != "file"
        assert fields["noticed_by"] == (0 if medium != "file" and not keeper_died else said["rank"])
        if keeper_died:  # they know what it had told them
            assert "when it was last heard" in text
            assert said["rank"] not in fields["not_arrived"]
            assert (MISSING in fields["not_arrived"]) == (step == "arriving")
        else:
            missing = [MISSING] if step == "arriving" else []
            assert fields["not_arrived"] == missing
            told_so = (
                f"of 4 ranks {MISSING} had not arrived" if missing else "all others had arrived"
            )
            assert told_so in text
        assert said["ended"] - died["died"] < scaled(PROMISED)


async def meet(url: str, rank: int, size: int, seconds: float = 20) -> Rendezvous:
    deadline = Deadline(seconds)
    return await rendezvous(url, rank=rank, size=size, deadline=deadline, environ={}, store=None)


class Waiting:
    """Three ranks of four, in this process, that wait for the last one."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> None:
        plain = meeting.exchange
        self._parts: list[Store] = []

        async def seen(store: Store, *args: Any, **more: Any) -> list[bytes]:
            self._parts.append(store)
            return await plain(store, *args, **more)

        monkeypatch.setattr(meeting, "exchange", seen)
        self.ranks = [
            asyncio.create_task(meet(url, rank, 4, limit)) for rank, limit in enumerate(seconds)
        ]

    async def arrived(self) -> None:
        while not self._parts:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.001)
        await self._parts[0].wait([f"exchange/{rank}" for rank in range(3)], Deadline(20))

    async def errors(self, *ranks: int) -> list[BaseException | Rendezvous]:
        return await asyncio.gather(*(self.ranks[rank] for rank in ranks), return_exceptions=True)


@pytest.mark.parametrize("medium", ["tcp", "file"])
@pytest.mark.parametrize("quitter", [0, 1])
@pytest.mark.parametrize("how_often", ["once", "at each await"])
async def test_a_rank_that_is_cancelled_tells_the_others(
    medium: str,
    quitter: int,
    how_often: str,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancelled scope of anyio cancels its task at each ``await``."""
    url = address(medium, port, tmp_path)
    waiting = Waiting(url, monkeypatch, [20] * 3)
    await waiting.arrived()
    waiting.ranks[quitter].cancel()
    while how_often == "at each await" and not waiting.ranks[quitter].done():
        await asyncio.sleep(0)
        waiting.ranks[quitter].cancel()
    # Rank 0 has no time to find out which ranks are absent.
    absent = () if (medium, quitter, how_often) == ("tcp", 0, "at each await") else (MISSING,)
    for error in await waiting.errors(*{0, 1, 2} - {quitter}):
        assert isinstance(error, PeerLostError)
        assert (error.rank, error.pid, error.not_arrived) == (quitter, os.getpid(), absent)
        assert "gave up inside init_process_group: it was cancelled" in str(error)
    with pytest.raises(asyncio.CancelledError):
        await waiting.ranks[quitter]
    found = await asyncio.gather(*(meet(url, rank, 3) for rank in range(3)))  # anew, and it works
    await asyncio.gather(*(rank.close() for rank in found))


@pytest.mark.parametrize("medium", ["tcp", "file"])
async def test_a_rank_that_is_cancelled_at_any_moment_can_come_again(
    medium: str, port: int, tmp_path: Path
) -> None:
    """Wherever it was, the other rank hears of it or is met by the next attempt: no rank waits long."""

    async def arrive(url: str, rank: int) -> None:
        found = await meet(url, rank, 2)
        try:
            async with found.failing_on_loss():
                await exchange(found.store, rank, 2, b"", Deadline(20), name="second")
                await found.settle(Deadline(20))
        finally:
            await found.close()

    async def insist(url: str, rank: int) -> None:
        while True:
            with contextlib.suppress(PeerLostError):
                return await arrive(url, rank)

    loop = asyncio.get_running_loop()
    for turns in range(60):
        place = tmp_path / str(turns)
        place.mkdir()
        url = address(medium, port, place)
        other = loop.create_task(insist(url, 0))
        cancelled = loop.create_task(arrive(url, 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        again = loop.create_task(insist(url, 1))
        async with asyncio.timeout(15):
            await other
        again.cancel()  # the first one may have been cancelled when rank 0 had all it needed
        await asyncio.wait([again])


@pytest.mark.parametrize("medium", ["tcp", "file"])
async def test_a_rank_that_is_cancelled_again_while_it_gives_up_leaves_nothing_behind(
    medium: str,
    port: int,
    tmp_path: Path,
    scaled: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived = asyncio.Event()
    plain = meeting.exchange

    async def seen(*args: Any, **more: Any) -> list[bytes]:
        arrived.set()
        return await plain(*args, **more)

    monkeypatch.setattr(meeting, "exchange", seen)
    for turns in range(12):
        place = tmp_path / str(turns)
        place.mkdir()
        url, deadline = address(medium, port, place), Deadline(20)
        waiting = asyncio.create_task(
            rendezvous(
                url, rank=0, size=2, deadline=deadline, environ={}, store=None, silence_limit=10
            )
        )
        await arrived.wait()
        arrived.clear()
        waiting.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        for thread in threading.enumerate():
            if thread.name == "aiodist-watch":
                thread.join(scaled(5))
                assert not thread.is_alive()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            _, pending = await asyncio.wait(left, timeout=scaled(5))
            assert not pending


@pytest.mark.parametrize("medium", ["tcp", "file"])
async def test_a_rank_with_a_shorter_timeout_does_not_leave_the_others_waiting(
    medium: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(address(medium, port, tmp_path), monkeypatch, [20, 0.5, 20])
    first, quitter, last = await waiting.errors(0, 1, 2)
    for error in (first, quitter, last):
        assert isinstance(error, StoreTimeoutError)
        assert error.ranks == (MISSING,)
        assert "rank 3 of 4 did not arrive at the store within 0.5 s" in str(error)
    assert f"rank 1 (process {os.getpid()} on " in str(first)
    assert "gave up" in str(last)


async def test_a_rank_that_fails_after_the_others_have_come_tells_them(port: int) -> None:
    async def life(rank: int) -> None:
        found = await meet(f"tcp://127.0.0.1:{port}", rank, 2)
        try:
            async with found.failing_on_loss():
                if rank == 1:
                    raise OSError("no room left")
                await found.settle(Deadline(20))
        finally:
            await found.close()

    first, second = await asyncio.gather(life(0), life(1), return_exceptions=True)
    assert isinstance(second, OSError)
    assert isinstance(first, PeerLostError)
    assert "rank 1 (process" in str(first)
    assert "gave up inside init_process_group: OSError('no room left')" in str(first)
    assert first.not_arrived == ()


async def test_a_rank_that_has_no_such_interface_tells_the_others(port: int) -> None:
    url, wrong = f"tcp://127.0.0.1:{port}", {"AIODIST_SOCKET_IFNAME": "nonesuch0"}
    first, second = await asyncio.gather(
        meet(url, 0, 2),
        rendezvous(url, rank=1, size=2, deadline=Deadline(20), environ=wrong, store=None),
        return_exceptions=True,
    )
    assert isinstance(second, InvalidUsageError)
    assert isinstance(first, PeerLostError)
    assert "gave up inside init_process_group: InvalidUsageError" in str(first)
    assert "matches no interface" in str(first)


async def test_a_second_loss_may_come_while_the_first_one_is_cleaned_up_after() -> None:
    store = MemoryStore()
    place = MeetingStore(store, "here", store.close, serves=True)
    loss_watch = LossWatch(place, store, rank=0, size=3)
    silent, dead = (PeerLostError(f"rank {r} is lost", rank=r, noticed_by=0) for r in (1, 2))
    opening = partial(over_tcp, "127.0.0.1", b"", None)

    async def meet() -> None:
        hear = loss_watch._report_silent_rank
        async with loss_watch.failing_on_loss():
            await loss_watch.begin(Deadline(5))
            loss_watch._watch = SilenceWatch(opening, 0, 3, 1.0, hear, star=True)
            asyncio.get_running_loop().call_soon(hear, silent)
            try:
                await asyncio.sleep(5)
            finally:
                await store.set("lost", encode_error(dead))
                assert loss_watch._task is not None
                await asyncio.wait([loss_watch._task])

    with pytest.raises(PeerLostError):
        await meet()
    assert loss_watch._task is not None
    await loss_watch._task  # raises nothing


async def test_a_cancellation_is_raised_as_it_is_although_a_rank_is_lost_by_then() -> None:
    store = MemoryStore()
    place = MeetingStore(store, "here", store.close, serves=True)
    loss_watch = LossWatch(place, store, rank=0, size=2)
    lost = PeerLostError("rank 1 is lost", rank=1, noticed_by=0)
    loss_watch._watch = SilenceWatch(
        partial(over_tcp, "127.0.0.1", b"", None),
        0,
        2,
        1.0,
        loss_watch._report_silent_rank,
        star=True,
    )

    async def meet() -> None:
        async with loss_watch.failing_on_loss():
            loss_watch._report_silent_rank(lost)
            await asyncio.sleep(5)

    meeting = asyncio.create_task(meet())
    await asyncio.sleep(0)
    meeting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await meeting
    await loss_watch.reported()
    with pytest.raises(PeerLostError):
        await meet()


async def test_events_after_the_meeting_are_ignored(port: int) -> None:
    ranks = await asyncio.gather(*(meet(f"tcp://127.0.0.1:{port}", rank, 2) for rank in range(2)))

    async def settle(found: Rendezvous) -> None:
        async with found.failing_on_loss():
            await found.settle(Deadline(20))

    await asyncio.gather(*(settle(found) for found in ranks))
    await ranks[1].close()
    assert not await ranks[0].store.check(["lost"])
    async with ranks[0].failing_on_loss():
        await asyncio.sleep(0)
    await ranks[0].close()


ENDS_EARLY = """
import asyncio, contextlib, os, select, sys
import aiodist as dist
from aiodist.deadline import Deadline
from aiodist.errors import DistError
from aiodist.groups.world import current_world
from aiodist.rendezvous import meeting
from tests.rendezvous.forks import fork_ranks

url = sys.argv[1]
reading, writing = os.pipe()
met, meets = os.pipe()

async def main(rank):
    await dist.init_process_group(init_method=url, rank=rank, world_size=2, timeout=60)
    if rank == 0:
        await asyncio.to_thread(os.read, met, 1)
    else:
        await dist.barrier()

def live(rank, say):
    if rank == 0:
        os.write(writing, os.getpid().to_bytes(8, "big"))
        asyncio.run(main(0))
        os._exit(0)
    leave = meeting.leave

    async def leave_when_rank_0_has_ended(store, *args, **more):
        await leave(store, *args, **more)
        process = os.pidfd_open(int.from_bytes(os.read(reading, 8), "big"))
        # The end of a connection shall tell of it: without one, rank 1 would fail to connect.
        while 0 not in current_world().endpoint._heartbeat._detector._lines:
            await asyncio.sleep(0.01)
        os.write(meets, b".")
        await asyncio.to_thread(select.select, [process], [], [])
        os.close(process)
        with contextlib.suppress(DistError):  # its store is known to be gone
            await store.get("never", Deadline(60))
        await asyncio.sleep(0.01)

    meeting.leave = leave_when_rank_0_has_ended
    asyncio.run(main(1))

fork_ranks([0, 1], live)
"""


def test_a_rank_that_ends_right_after_init_is_not_lost_inside_init(
    port: int, scaled: Callable[[float], float]
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY, f"tcp://127.0.0.1:{port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(25),
        check=False,
    )
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)[1]
    assert (said["error"], said["fields"]["rank"]) == ("PeerLostError", 0)
    assert "inside init_process_group" not in said["text"]
    assert "died, ended without destroy_process_group, or was cut off" in said["text"]
