"""Many operations under way at once, started and awaited in orders of each rank's own."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks
from tests.operations.batch import placing

TRANSPORTS = ["inproc", "tcp", "unix", "shm", "hosts"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_many_collectives_started_before_any_is_awaited(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        started: list[tuple[dist.Work[Any], torch.Tensor, list[float]]] = []
        for number in range(60):
            kind, count = number % 5, (1, 100, 30_000)[number % 3]
            tensor = torch.full((count,), float(rank + number))
            if kind == 0:
                started.append((dist.all_reduce(tensor), tensor, [3 + 3 * number] * count))
            elif kind == 1:
                work = dist.broadcast(tensor, number % 3)
                started.append((work, tensor, [number % 3 + number] * count))
            elif kind == 2:
                out = torch.zeros(3 * count)
                expected = [float(r + number) for r in range(3) for _ in range(count)]
                started.append((dist.all_gather_into_tensor(out, tensor), out, expected))
            elif kind == 3:
                started.append((dist.barrier(), torch.zeros(0), []))
            else:
                out = torch.zeros(count)
                work = dist.reduce_scatter(out, [tensor] * 3)
                started.append((work, out, [3 + 3 * number] * count))
        random.Random(rank).shuffle(started)
        for work, tensor, expected in started:
            await work
            assert tensor.tolist() == expected

    way, hosts = placing(transport, 3)
    await run_ranks(3, on_rank, way, hosts=hosts, timeout=30)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_messages_by_tag_whatever_order_they_are_asked_for(transport: str) -> None:
    tags = list(range(-20, 20))

    async def on_rank(rank: int) -> None:
        mine, other = random.Random(rank), 1 - rank
        order = mine.sample(tags, len(tags))
        sends = [dist.isend(torch.full((tag + 21,), tag), other, tag=tag) for tag in order]
        mine.shuffle(order)
        places = {tag: torch.zeros(tag + 21, dtype=torch.int64) for tag in order}
        receives = [dist.irecv(places[tag], other, tag=tag) for tag in order]
        for work in [*receives, *sends]:
            await work
        assert all((place == tag).all() for tag, place in places.items())

    way, hosts = placing(transport, 2)
    await run_ranks(2, on_rank, way, hosts=hosts, timeout=30)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [0, 1, 1000, 400_000])
async def test_messages_of_one_tag_keep_their_order(transport: str, count: int) -> None:
    """From one sender; any-source receives take them in that order, too."""

    async def on_rank(rank: int) -> None:
        if rank:
            for number in range(8):
                await dist.send(torch.full((count,), 10.0 * number + rank), 0)
                await dist.send(torch.tensor([number]), 0, tag=1)
            return
        for source in (1, 2):
            for number in range(4):
                into = torch.zeros(count)
                assert await dist.recv(into, source) == source
                assert (into == 10 * number + source).all()
        seen: dict[int, int] = {1: 4, 2: 4}
        for _ in range(8):
            into = torch.zeros(count)
            source = await dist.recv(into)
            assert (into == 10 * seen[source] + source).all()
            seen[source] += 1
        for source in (1, 2):
            numbers = [(await dist.recv(src=source, tag=1)).tensor.item() for _ in range(8)]
            assert numbers == list(range(8))

    way, hosts = placing(transport, 3)
    await run_ranks(3, on_rank, way, hosts=hosts, timeout=30)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_messages_and_collectives_do_not_wait_for_each_other(transport: str) -> None:
    """A large message without a posted receive delays no other operation."""

    async def on_rank(rank: int) -> None:
        other = 1 - rank
        sent = torch.full((800_000,), float(rank))
        sending = dist.isend(sent, other)
        for number in range(10):
            tensor = torch.full((50_000,), number)
            await dist.all_reduce(tensor)
            assert (tensor == 2 * number).all()
        into = torch.zeros(800_000)
        await dist.recv(into, other)
        await sending
        assert (into == other).all()

    way, hosts = placing(transport, 2)
    await run_ranks(2, on_rank, way, hosts=hosts, timeout=30)


async def test_operations_start_at_the_call_and_gather_takes_them_in_any_order() -> None:
    async def on_rank(rank: int) -> None:
        one, two = torch.ones(1), torch.full((2,), 2.0)
        works = [dist.all_reduce(one), dist.all_reduce(two)]
        if rank:
            works.reverse()

        async def done(work: dist.Work[None]) -> None:
            await work

        await asyncio.gather(*map(done, works))
        assert one.tolist() == [2]
        assert two.tolist() == [4, 4]

    await run_ranks(2, on_rank, timeout=30)


async def test_a_work_may_be_awaited_twice_and_by_many() -> None:
    async def on_rank(rank: int) -> None:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor)

        async def done() -> None:
            await work

        await asyncio.gather(done(), done(), done())
        await work
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert tensor.item() == 2

    await run_ranks(2, on_rank, timeout=30)


async def test_an_operation_completes_without_await() -> None:
    """Works that are dropped at once still run, and complete before the group is destroyed.

    Each warns, also if it has ended only while its group was destroyed.
    """
    tensors = [torch.ones(100_000) for _ in range(2)]

    async def on_rank(rank: int) -> None:
        dist.all_reduce(tensors[rank])
        dist.barrier()

    async def run() -> None:
        await run_ranks(2, on_rank, timeout=30)
        gc.collect()  # what a cycle keeps warns later

    with pytest.warns(RuntimeWarning, match="was never awaited") as warned:
        await run()
    assert len(warned) == 4
    assert all((tensor == 2).all() for tensor in tensors)


async def test_a_small_send_is_done_before_its_receive_and_its_memory_is_free() -> None:
    async def on_rank(rank: int) -> None:
        tensor = torch.ones(8)
        if rank == 0:
            await dist.send(tensor, 1)
            tensor.fill_(5)
            await dist.barrier()
        else:
            await dist.barrier()
            await dist.recv(tensor.zero_(), 0)
            assert tensor.tolist() == [1] * 8

    await run_ranks(2, on_rank, timeout=30)
