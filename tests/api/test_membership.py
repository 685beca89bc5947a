"""Events of ranks that come and go."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

import aiodist as dist
from aiodist.groups.world import World, use_world
from aiodist.testing import run_ranks
from tests.engine.deaths import barrier_of_all, die
from tests.limits import scaled


async def test_a_rank_that_destroys_its_group_has_left():
    async def main(rank):
        events = dist.membership()
        await dist.barrier()
        if rank == 2:
            await dist.destroy_process_group()
            return None
        event = await anext(events)
        assert event.error is not None
        return event.kind, event.rank, event.error.departure

    async with asyncio.timeout(scaled(10)):
        assert await run_ranks(3, main) == [("left", 2, "left")] * 2 + [None]


async def test_a_dead_rank_is_lost_and_its_replacement_joins(monkeypatch):
    monkeypatch.setenv("AIODIST_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("AIODIST_TRANSPORT", "unix")
    store, over = dist.MemoryStore(), asyncio.Barrier(3)

    async def replacement():
        use_world(World())
        await dist.rejoin(store, 1, timeout=scaled(10))
        await dist.barrier()
        await dist.destroy_process_group()

    async def main(rank):
        events = dist.membership()
        await barrier_of_all(over)
        if rank == 1:
            await die()
            await asyncio.create_task(replacement(), context=contextvars.copy_context())
            await over.wait()
            return None
        lost = await anext(events)  # while this rank calls no operation
        await dist.shrink()
        # Two tasks of a rank get the same group, and the events tell of the newcomer once.
        group, same = await asyncio.gather(*(dist.grow(store, [1]) for _ in range(2)))
        assert same is group
        joined = await anext(events)
        await dist.barrier()
        left = await anext(events)
        await over.wait()
        assert (joined.error, lost.error.rank) == (None, 1)
        return [(event.kind, event.rank) for event in (lost, joined, left)]

    async with asyncio.timeout(scaled(20)):
        first, _, third = await run_ranks(3, main, "unix")
    assert first == third == [("lost", 1), ("joined", 1), ("left", 1)]


async def test_the_iteration_ends_after_the_events_when_this_rank_destroys_its_group():
    closed = asyncio.Event()

    async def collect(events):
        return [(event.kind, event.rank) async for event in events]

    async def main(rank):
        events, others = dist.membership(), dist.membership()
        await dist.barrier()
        if rank == 1:
            await closed.wait()
        elif rank == 0:
            await anext(others)  # rank 2 has left: ``events`` has that, too
            await dist.destroy_process_group()
            closed.set()
            return await collect(events)
        return None

    async with asyncio.timeout(scaled(10)):
        assert (await run_ranks(3, main))[0] == [("left", 2)]


async def test_readers_are_independent_and_a_cancelled_wait_loses_no_event():
    async def main(rank):
        one, two = dist.membership(), dist.membership()
        waiting = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        waiting.cancel()
        await dist.barrier()
        if rank == 1:
            await dist.destroy_process_group()
            return None
        return [(await anext(reader)).rank for reader in (one, two)]

    async with asyncio.timeout(scaled(10)):
        assert (await run_ranks(2, main))[0] == [1, 1]


async def test_without_a_process_group_it_raises():
    use_world(World())
    with pytest.raises(dist.NotInitializedError):
        dist.membership()
