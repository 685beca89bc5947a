"""A rank that fails and leaves at once: the others hear why, not that it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups import contexts
from aiodist.groups.contexts import CollectiveContext
from aiodist.p2p.endpoint import Endpoint
from aiodist.testing import run_ranks
from tests.limits import scaled

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


@pytest.mark.parametrize("transport", ["inproc", "tcp", "unix"])
async def test_a_word_that_comes_after_other_ranks_have_left_counts(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 0 and 3 have it from rank 2, and leave. Rank 1 hears that they have left, and has it later."""
    monkeypatch.setattr(contexts, "_WORD_SECONDS", scaled(20))
    announce, postpones = Endpoint.announce_failure, CollectiveContext.postpones
    held: list[Callable[[], None]] = []
    left = asyncio.Event()

    def held_back(
        self: Endpoint, group: int, sequence: int, error: bytes, ranks: Sequence[int]
    ) -> None:
        if self.rank == 2:
            held.append(partial(announce, self, group, sequence, error, [1]))
        announce(self, group, sequence, error, [rank for rank in ranks if rank != 1])

    def postponed(self: CollectiveContext, *ending: Any) -> bool:
        waits = postpones(self, *ending)
        if self.rank == 1:
            left.set()
        return waits

    monkeypatch.setattr(Endpoint, "announce_failure", held_back)
    monkeypatch.setattr(CollectiveContext, "postpones", postponed)

    async def cancel(rank: int) -> str:
        await dist.barrier()
        work = dist.all_reduce(np.ones(100_000))
        if rank == 2:
            work.cancel()
        with pytest.raises((dist.DistError, asyncio.CancelledError)) as caught:
            await work
        if rank == 2:
            await left.wait()
            held.pop()()
        return type(caught.value).__name__

    names = ["CollectiveCancelledError"] * 4
    names[2] = "CancelledError"
    assert await run_ranks(4, cancel, transport) == names


@pytest.mark.parametrize("timeout", [None, 0.2])
async def test_without_a_word_the_collective_fails_by_the_rank_that_left(
    timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, or at its own timeout."""
    if timeout is None:
        monkeypatch.setattr(contexts, "_WORD_SECONDS", 0.2)

    async def leave(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            began = time.monotonic()
            with pytest.raises(dist.PeerLostError, match=r"rank [12] .* has left"):
                await dist.barrier(timeout=timeout)
            assert time.monotonic() - began >= 0.2
            with pytest.raises(dist.PeerLostError, match=r"rank [12] .* has left"):
                await dist.barrier()  # at once

    await run_ranks(3, leave)


async def test_another_rank_that_leaves_does_not_end_the_wait_for_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts, "_WORD_SECONDS", 0.05)

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.barrier()
            for other in (1, 2):
                told = f"rank {other} has left"
                work._fail(dist.PeerLostError(told, rank=other, departure="left"))
                assert not work.is_completed()
            with pytest.raises(dist.PeerLostError, match="rank 1 has left"):
                await work

    await run_ranks(3, main)


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
