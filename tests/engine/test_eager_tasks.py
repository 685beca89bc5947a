"""A loop whose tasks are eager: they take their first step inside ``create_task``, and may end there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.testing.in_process import run_ranks
from aiodist.transport.base_transport import Transport
from tests.engine.conftest import RunRanks

pytestmark = pytest.mark.usefixtures("eager_tasks")


async def test_operations(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        small, large = np.full(4, rank + 1.0), np.full(1 << 18, rank + 1.0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dist.all_reduce(small))
            tasks.create_task(dist.all_reduce(large))
            gathering = tasks.create_task(dist.all_gather_new(np.array([rank])))
        assert (small == 6).all()
        assert (large == 6).all()
        assert np.concatenate(gathering.result()).tolist() == [0, 1, 2]
        into = np.zeros(1)
        sending = asyncio.create_task(dist.send(np.array([rank + 0.5]), (rank + 1) % 3))
        assert await dist.recv(into, (rank - 1) % 3) == (rank - 1) % 3
        await sending
        assert into == (rank - 1) % 3 + 0.5
        pair = await dist.new_group([0, 2])
        if rank != 1:
            told = [None, None]
            await dist.all_gather_object(told, rank, pair)
            assert told == [0, 2]

    await ranks(3, main)


async def test_a_cancelled_task_takes_its_receive_back(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            await dist.send_object("for the second", 1)
            return
        first = asyncio.create_task(dist.recv_object(0))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await dist.barrier()
        assert (await dist.recv_object(0)).obj == "for the second"

    await ranks(2, main)


async def test_the_end_of_a_rank_reaches_those_that_wait_for_it(ranks: RunRanks) -> None:
    async def main(rank: int) -> str:
        waiting = asyncio.create_task(dist.recv_object(1 - rank))
        await dist.barrier()
        if rank == 1:
            await dist.abort_process_group()
        with pytest.raises(dist.CollectiveError) as caught:
            await waiting
        return type(caught.value).__name__

    assert await ranks(2, main) == ["GroupRevokedError", "GroupClosedError"]


async def test_a_stream_and_a_service(inproc: RunRanks) -> None:
    async def worker() -> Callable[[list[Any]], Awaitable[Sequence[Any]]]:
        async def handle(requests: list[Any]) -> list[Any]:
            sums = [np.array(request) for request in requests]
            await asyncio.gather(*map(dist.all_reduce, sums))
            return [each.tolist() for each in sums]

        return handle

    async def main(rank: int) -> None:
        async with dist.open_stream(1 - rank) as stream:
            sending = asyncio.create_task(stream.send(rank))
            assert await anext(stream) == 1 - rank
            await sending
        async with dist.serving(worker, max_batch=2) as service:
            if await service.until_leader():
                calls = [asyncio.create_task(service.call([n])) for n in range(5)]
                assert await asyncio.gather(*calls) == [[2 * n] for n in range(5)]

    await inproc(2, main)


async def test_a_rank_that_fails_at_once_ends_the_making_of_the_others() -> None:
    def wrap(rank: int, transport: Transport) -> Transport:
        raise KeyError(rank)

    with pytest.raises(KeyError, match="0"):
        await run_ranks(3, lambda rank: dist.barrier(), wrap=wrap)
