"""Messages that cannot be sent, do not fit, or are asked about too early."""

from __future__ import annotations

import asyncio

import pytest
import torch

import aiodist as dist
from aiodist.errors import GroupClosedError, GroupRevokedError, InvalidUsageError
from aiodist.testing.in_process import run_ranks
from tests.operations.bad_input.calls import read_only, t


async def test_a_bad_message_in_a_batch_keeps_all_of_it_back() -> None:
    """Whichever argument is bad, and wherever it stands."""

    async def on_rank(number: int) -> None:
        await dist.barrier()  # connected: what is sent is on its way at once
        bad = [
            (dist.P2POp(dist.isend, t(4), 1), "this rank itself"),
            (dist.P2POp(dist.isend, t(4), 5), "out of range"),
            (dist.P2POp(dist.isend, torch.empty(4, device="meta"), 0), "is on meta"),
            (dist.P2POp(dist.irecv, read_only(), 0), "read-only"),
            (dist.P2POp(dist.irecv, t(4), 0, tag="x"), "tag must be an int"),
        ]
        if number == 1:
            for op, words in bad:
                good = dist.P2POp(dist.isend, t(4), 0)
                for batch in ([good, op], [op, good]):
                    with pytest.raises((InvalidUsageError, TypeError), match=words):
                        dist.batch_isend_irecv(batch)
            await dist.send(2 * t(4), 0)
        else:
            into = t(4)
            await dist.recv(into, 1)
            assert into.tolist() == [2] * 4

    await run_ranks(2, on_rank, timeout=20)


async def test_a_batch_with_a_message_of_a_closed_group_starts_nothing() -> None:
    async def on_rank(number: int) -> None:
        closed = await dist.new_group([0, 1])
        closed.abort()
        untouched, into = t(4), t(4)
        batch = [
            dist.P2POp(dist.irecv, untouched, 1 - number),
            dist.P2POp(dist.isend, t(4), 1 - number, closed),
        ]
        with pytest.raises((GroupClosedError, GroupRevokedError)):
            dist.batch_isend_irecv(batch)
        await asyncio.gather(dist.isend(2 * t(4), 1 - number), dist.irecv(into, 1 - number))
        assert into.tolist() == [2] * 4
        assert untouched.tolist() == [1] * 4

    await run_ranks(2, on_rank, timeout=20)


async def test_a_refused_work_method_names_the_replacement() -> None:
    async def on_rank(number: int) -> None:
        if number == 1:
            work = dist.irecv(t(4), 0)
            with pytest.raises(InvalidUsageError, match=r"block the event loop.*await it"):
                work.wait()
            with pytest.raises(InvalidUsageError, match="has not finished: await it"):
                work.result()
            with pytest.raises(InvalidUsageError, match="receive that has finished"):
                work.source_rank()
            await dist.barrier()
            assert await work == 0
            assert work.wait() is True
        else:
            await dist.barrier()
            await dist.send(t(4), 1)

    await run_ranks(2, on_rank, timeout=20)


async def test_a_message_that_does_not_fit_is_dropped_and_the_next_one_comes() -> None:
    async def on_rank(number: int) -> None:
        if number == 0:
            await dist.send(t(5), 1)
            await dist.send(t(4, dtype=torch.int32), 1)
            await dist.send(7 * t(4), 1)
            return
        into = torch.zeros(4)
        with pytest.raises(InvalidUsageError, match=r"rank 0 sent float32\[5\].*float32\[4\]"):
            await dist.recv(into, 0)
        with pytest.raises(InvalidUsageError, match=r"rank 0 sent int32\[4\].*float32\[4\]"):
            await dist.recv(into, 0)
        assert into.tolist() == [0] * 4
        assert await dist.recv(into, 0) == 0
        assert into.tolist() == [7] * 4

    await run_ranks(2, on_rank, timeout=20)
