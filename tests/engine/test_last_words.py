"""A rank that fails and leaves at once: the others hear why, not that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups import contexts
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.status_query import StatusQueries
from aiodist.testing import run_ranks
from tests.engine.conftest import engine_of
from tests.engine.deaths import barrier_of_all, die
from tests.limits import scaled, until

TRANSPORTS = ("inproc", "tcp", "unix", "shm")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_mismatch_reaches_ranks_that_had_no_connection_yet(transport: str) -> None:
    async def fail(rank: int) -> str:
        with pytest.raises(dist.DistError) as caught:
            await dist.all_reduce(np.ones(3 if rank == 3 else 4))
        return type(caught.value).__name__

    assert await run_ranks(4, fail, transport) == ["CollectiveMismatchError"] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cancellation_does_too(transport: str) -> None:
    async def cancel(rank: int) -> str:
        work = dist.all_reduce(np.ones(100_000))
        if rank == 2:
            work.cancel()
        with pytest.raises((dist.DistError, asyncio.CancelledError)) as caught:
            await work
        return type(caught.value).__name__

    names = ["CollectiveCancelledError"] * 4
    names[2] = "CancelledError"
    assert await run_ranks(4, cancel, transport) == names


def wait_long(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let announcements come much later than goodbyes. Returns what is set once rank 1 waits for one."""
    monkeypatch.setattr(contexts, "_ANNOUNCEMENT_SECONDS", 1e6)
    postpones, waits = CollectiveContext.postpones, asyncio.Event()

    def postponed(self: CollectiveContext, *ending: Any) -> bool:
        if not postpones(self, *ending):
            return False
        if self.rank == 1:
            waits.set()
        return True

    monkeypatch.setattr(CollectiveContext, "postpones", postponed)
    return waits


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_announcement_that_comes_after_another_rank_has_left_counts(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the operations behind it."""
    waits = wait_long(monkeypatch)
    leaves, fails = (2, 0) if transport == "shm" else (0, 2)  # rank 1 waits for the first one first

    async def cancel(rank: int) -> list[str]:
        await dist.barrier()
        if rank == leaves:
            return []
        if rank == fails:
            await waits.wait()
        works = [dist.all_reduce(np.ones(100_000)) for _ in range(2)]
        ends = []
        for work in works:
            if rank == fails:
                work.cancel()
            with pytest.raises((dist.DistError, asyncio.CancelledError)) as caught:
                await work
            ends.append(type(caught.value).__name__)
        return ends

    ends = await run_ranks(3, cancel, transport)
    assert ends[1] == ["CollectiveCancelledError"] * 2
    assert ends[fails] == ["CancelledError"] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_without_an_announcement_the_rank_that_left_is_the_cause(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the time for one is over, or that of the operation; after that at once."""
    waits = wait_long(monkeypatch)

    async def leave(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            work = dist.barrier(timeout=scaled(0.5))
            await waits.wait()
            assert not work.is_completed()
            with pytest.raises(dist.PeerLostError, match=r"rank [02] .* has left"):
                await work
            with pytest.raises(dist.PeerLostError, match=r"rank [02] .* has left"):
                await dist.barrier(timeout=1e6)
            monkeypatch.setattr(contexts, "_ANNOUNCEMENT_SECONDS", 0.01)

    await run_ranks(3, leave, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_another_rank_that_leaves_does_not_end_the_wait_for_an_announcement(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_ANNOUNCEMENT_SECONDS", 0.05)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier()
            for other in (1, 2):
                told = f"rank {other} has left"
                engine_of(dist.group.WORLD).peer_left(
                    other, dist.PeerLostError(told, rank=other, departure="left")
                )
                assert not work.is_completed()
            with pytest.raises(dist.PeerLostError, match=r"rank [12] has left"):
                await work

    await run_ranks(3, main, transport)


async def test_a_receive_from_any_rank_ends_while_a_collective_waits_for_an_announcement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_long(monkeypatch)

    async def leave(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            work = dist.barrier()
            with pytest.raises(dist.PeerLostError, match="all other ranks have left"):
                await dist.irecv(np.zeros(1), timeout=scaled(20))
            assert not work.is_completed()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    await run_ranks(3, leave)


async def test_a_status_query_under_way_does_not_hide_that_a_rank_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operation's time is up, and the others are asked what they do, as one of them leaves."""
    wait_long(monkeypatch)
    answered: list[Callable[[], None]] = []

    def held(self: StatusQueries, sequence: int, ranks: object, done: Callable[..., None]) -> None:
        answered.append(partial(done, {}))

    monkeypatch.setattr(StatusQueries, "call", held)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier(timeout=0.01)
            await until(lambda: answered)
            left = dist.PeerLostError("rank 1 has left", rank=1, departure="left")
            work._fail(left)
            assert not work.is_completed()
            answered.pop()()
            with pytest.raises(dist.PeerLostError, match="rank 1 has left"):
                await work

    await run_ranks(3, main)


async def test_an_operation_that_has_ended_is_freed_before_the_wait_would_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_long(monkeypatch)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier()
            work._fail(dist.PeerLostError("rank 1 has left", rank=1, departure="left"))
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            freed = weakref.ref(work)
            del work
            gc.collect()
            assert freed() is None

    await run_ranks(3, main)


async def test_the_same_error_again_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operations that wait for a peer fail by one error of it."""
    wait_long(monkeypatch)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier()
            left = dist.PeerLostError("rank 1 has left", rank=1, departure="left")
            for _ in range(2):
                work._fail(left)
                assert not work.is_completed()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    await run_ranks(3, main)


@pytest.mark.parametrize("cause", ["a death", "the end of the group"])
async def test_what_is_certain_is_told_at_once(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long(monkeypatch)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier()
            if cause == "a death":
                work._fail(dist.PeerLostError("rank 1 died", rank=1, departure="died"))
            else:  # which another rank has told, after its own wait
                left = dist.PeerLostError("rank 1 has left", rank=1, departure="left")
                engine_of(dist.group.WORLD).peer_lost(left, from_peer=True)
            assert work.is_completed()
            assert isinstance(work.exception(), dist.PeerLostError)

    await run_ranks(3, main)


@pytest.mark.parametrize("size", [2, 3])
async def test_no_announcement_is_waited_for_where_none_can_come(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group of two, and from a rank that has died."""
    wait_long(monkeypatch)
    met = asyncio.Barrier(size)

    async def main(rank: int) -> None:
        await barrier_of_all(met)
        if rank == 0:
            if size == 3:
                await die()
            return
        with pytest.raises(dist.PeerLostError, match="rank 0"):
            await dist.barrier()

    async with asyncio.timeout(scaled(20)):
        await run_ranks(size, main)


LEFT = r"rank 1 \(.*\) has (probably left, or its process has ended: cannot connect to|left: it)"
"""Certain if the rank left a flag in shared memory; probable if its port refuses connections."""


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_receive_from_a_rank_that_left_without_a_message(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two were never connected, so no stream can break: the receiver has to look."""
    monkeypatch.setattr("aiodist.p2p.endpoint._SILENCE_SECONDS", 0.01)

    async def wait(rank: int) -> None:
        if rank == 0:
            with pytest.raises(dist.PeerLostError, match=LEFT):
                await dist.recv(np.zeros(3), 1)

    await run_ranks(2, wait, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_first_send_to_a_rank_that_has_left(transport: str) -> None:
    gone = asyncio.Event()

    async def send(rank: int) -> str:
        if rank == 1:
            await dist.destroy_process_group()
            gone.set()
            return ""
        await gone.wait()
        with pytest.raises(dist.PeerLostError, match=LEFT) as caught:
            await dist.send(np.zeros(3), 1)
        return str(caught.value)

    told, _ = await run_ranks(2, send, transport)
    assert ("probably" in told) == (transport != "shm")


async def test_a_cancelled_operation_receives_no_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            ended = asyncio.Event()
            first, second = (dist.irecv(np.zeros(3), 1) for _ in range(2))
            second._when_done(ended.set)
            await ended.wait()
            assert first.is_completed()
            assert not first.cancel()
            assert second.is_completed()

    await run_ranks(2, leave)
    complaints = [r for r in caplog.records if "was not awaited" in r.getMessage()]
    assert len(complaints) == 1  # of the second, which was not given up


async def test_the_last_message_of_a_lost_rank_may_be_of_a_group_that_is_closed_here() -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        if rank == 1:
            await group.send(np.ones(1), 0, tag=3)
            return
        await group.recv(np.zeros(1), 1, tag=3)
        await dist.destroy_process_group(group)
        with pytest.raises(dist.PeerLostError) as caught:
            await dist.recv(np.zeros(1), 1)
        assert "tensors with tag 3 in a group that is not open here" in str(caught.value)

    await run_ranks(2, main)
