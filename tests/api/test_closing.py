"""What is said of operations that were under way when their group was destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

import aiodist as dist
from aiodist.api.lifecycle import open_in_process
from aiodist.groups.world import current_world
from aiodist.testing import run_ranks
from aiodist.transport.inproc import InprocHub, InprocTransport


async def test_an_unawaited_failure_is_logged_when_its_group_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def forgetful(rank: int) -> None:
        dist.recv(np.zeros(1), 1 - rank, tag=7)

    await run_ranks(2, forgetful)
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2
    for rank, text in enumerate(said):
        assert text.startswith(
            f"recv from rank {rank} with tag 7 in group 'default_pg' had not ended"
        )
        assert text.endswith("was destroyed; it was never awaited")


@pytest.mark.parametrize("how", ["awaited", "ended by itself", "aborted"])
async def test_awaited_and_completed_operations_are_not_logged_at_close(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rank: int) -> None:
        if how == "ended by itself":
            dist.all_reduce(np.ones(3)).is_completed()
            return
        work = dist.recv(np.zeros(1), 1 - rank)
        if how == "aborted":
            await dist.abort_process_group()
            assert work.is_completed()
            return
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        await dist.destroy_process_group()
        with pytest.raises(dist.GroupClosedError):
            await task

    await run_ranks(2, main)
    assert caplog.records == []


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_all_that_the_world_holds_is_given_back_though_one_part_of_it_is_not(
    how: str,
) -> None:
    begun = asyncio.Event()
    given_back: list[str] = []

    async def first() -> None:
        begun.set()
        if how == "failed":
            raise OSError("it is stuck")
        await asyncio.Event().wait()

    async def second() -> None:
        given_back.append("second")

    async def main(rank: int) -> None:
        for callback in (first, second):
            current_world().on_close(callback, lambda: None)
        leaving = asyncio.create_task(dist.destroy_process_group())
        await begun.wait()
        if how == "cancelled":
            leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled() == (how == "cancelled")
        assert leaving.cancelled() or isinstance(leaving.exception(), OSError)

    await run_ranks(1, main)
    assert given_back == ["second"]


async def test_a_cancelled_destroy_ends_what_is_under_way_and_closes_all() -> None:
    over = asyncio.Event()

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        if rank == 0:
            work = dist.isend(np.ones(1 << 18), 1, group)  # no rank receives it
            for closed in (group, None):
                leaving = asyncio.create_task(dist.destroy_process_group(closed))
                await asyncio.sleep(0)
                leaving.cancel()
                await asyncio.wait([leaving])
                assert leaving.cancelled()
                assert isinstance(work.exception(), dist.GroupClosedError)
                if closed is not None:
                    work = dist.isend(np.ones(1 << 18), 1)
            assert not dist.is_initialized()
            with pytest.raises(dist.NotInitializedError, match="since destroy_process_group"):
                dist.get_rank()
            over.set()
        await over.wait()

    await run_ranks(2, main)


async def test_a_destroy_closes_a_group_that_is_made_while_it_waits() -> None:
    leaves = asyncio.Event()

    async def main(rank: int) -> None:
        async def use_a_new_group() -> None:
            made = await dist.new_group()
            assert isinstance(made, dist.ProcessGroup)
            await dist.recv(np.zeros(1), 1 - rank, made)

        if rank == 1:
            await leaves.wait()
            await dist.new_group()
            return
        using = asyncio.create_task(use_a_new_group())
        await asyncio.sleep(0)  # new_group waits for the other rank from here on
        leaving = asyncio.create_task(dist.destroy_process_group())
        await asyncio.sleep(0)
        leaves.set()
        await leaving
        with pytest.raises(dist.GroupClosedError, match="destroyed"):
            await asyncio.wait_for(using, 5)

    await run_ranks(2, main)


async def test_a_new_default_group_outlives_the_abort_of_the_one_before() -> None:
    hub, store, all_have_left = InprocHub(), dist.MemoryStore(), asyncio.Barrier(3)

    async def main(rank: int) -> None:
        if rank == 0:
            await dist.send(np.ones(1), 1)
            await dist.abort_process_group()  # it still connects to rank 2 as rank 1 answers
        else:
            if rank == 1:
                await dist.recv(np.ones(1), 0)
            with pytest.raises(dist.CollectiveError):
                await dist.barrier()
            await dist.destroy_process_group()
        await all_have_left.wait()
        await open_in_process(rank, 3, store, InprocTransport(hub), 20, None)
        await dist.barrier()

    await run_ranks(3, main)


async def test_a_destroy_that_is_dropped_does_not_go_on() -> None:
    """As where its event loop has been closed meanwhile."""

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.isend(np.ones(1 << 18), 1)
            leaving = dist.destroy_process_group()
            leaving.send(None)
            leaving.close()
            assert isinstance(work.exception(), dist.GroupClosedError)

    await run_ranks(2, main)


@pytest.mark.parametrize("close", [dist.destroy_process_group, dist.abort_process_group])
async def test_all_groups_are_closed_although_one_of_them_raises(
    close: Callable[[], Awaitable[None]],
) -> None:
    def stuck() -> None:
        raise OSError("it is stuck")

    async def main(rank: int) -> None:
        groups = [await dist.new_group([0]) for _ in range(3)]
        engines = [group._engine for group in groups if isinstance(group, dist.ProcessGroup)]
        engines[1].backend.close = stuck  # type: ignore[method-assign]
        with pytest.raises(OSError, match="stuck"):
            await close()
        assert all(engine.is_closed for engine in engines)
        with pytest.raises(dist.NotInitializedError, match="since destroy_process_group"):
            dist.get_rank()

    await run_ranks(1, main)


@pytest.mark.parametrize("turns", range(1, 7))
async def test_a_cancelled_destroy_leaves_no_socket_open(turns: int) -> None:
    """Also while a connection to the other rank is being made. What stays open fails the test."""
    left = asyncio.Event()

    async def main(rank: int) -> None:
        if rank == 1:
            await left.wait()
            return
        work = asyncio.ensure_future(dist.all_reduce(np.ones(1)))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        leaving = asyncio.create_task(dist.destroy_process_group())
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        left.set()

    await run_ranks(2, main, "tcp")


async def test_an_unawaited_error_that_comes_while_its_group_closes_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def forgetful(rank: int) -> None:
        dist.all_reduce(np.ones(3 + rank))

    with pytest.warns(RuntimeWarning, match="was never awaited"):
        await run_ranks(2, forgetful)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("was not awaited: ranks disagree about operation 0" in text for text in said)


async def test_a_subgroup_is_destroyed_in_its_own_event_loop_alone() -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group()
        with pytest.raises(dist.InvalidUsageError, match="in another event loop"):
            await asyncio.to_thread(asyncio.run, dist.destroy_process_group(group))
        await dist.barrier(group)
        await dist.destroy_process_group()
        await dist.destroy_process_group(group)  # it is over already
        await dist.abort_process_group(group)

    await run_ranks(2, main)
