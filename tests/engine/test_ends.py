"""What ends a group on all its ranks, and what its error says: revoke, abort, a death, a timeout."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.naming import neighbours
from aiodist.groups.world import World, current_world
from aiodist.testing import run_ranks
from tests.engine.conftest import RunRanks, engine_of, outcome
from tests.engine.deaths import barrier_of_all
from tests.limits import until


async def test_revoke_ends_current_and_later_operations_on_all_ranks(ranks: RunRanks) -> None:
    done = asyncio.Barrier(3)

    async def main(rank: int) -> list[BaseException | None]:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        works = [dist.irecv(np.zeros(1), (rank + 1) % 3, group)]
        if rank == 1:
            group.revoke()
            group.revoke()
        else:
            works.append(dist.all_reduce(np.ones(2), group=group))
        errors = [await outcome(work) for work in works]
        with pytest.raises(dist.GroupRevokedError, match="rank 1 revoked") as caught:
            dist.barrier(group)
        await done.wait()
        await dist.barrier()  # the other groups go on
        return [*errors, caught.value]

    for errors in await ranks(3, main):
        for error in errors:
            assert isinstance(error, dist.GroupRevokedError), errors
            assert error.rank == 1
            assert error.group == "group#0"


@pytest.mark.parametrize("size", [2, 3, 5, 8])
async def test_a_loss_spreads_when_the_rank_that_noticed_it_tells_only_one(
    inproc: RunRanks, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """As if it had died half way: each that hears of it passes it on."""
    from aiodist.groups.world import World

    real = World.announce

    def stingy(self: World, group: dist.ProcessGroup, *args: object) -> None:
        ranks = args[-1]
        assert isinstance(ranks, list)
        chosen = ranks[:1] if self.rank == 0 else ranks
        real(self, group, *args[:-1], chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(World, "announce", stingy)

    async def main(rank: int) -> BaseException | None:
        group = await dist.new_group(range(size))
        assert isinstance(group, dist.ProcessGroup)
        work = dist.irecv(np.zeros(1), group=group)
        if rank == 0:
            group.revoke()
        error = await outcome(work)
        await dist.barrier()
        return error

    errors = await inproc(size, main)
    assert all(isinstance(error, dist.GroupRevokedError) for error in errors), errors


def test_neighbours_reach_all_ranks() -> None:
    for size in range(1, 40):
        reached, front = {0}, {0}
        while front:
            front = {to for number in front for to in neighbours(number, size)} - reached
            reached |= front
        assert reached == set(range(size))
        assert all(number not in neighbours(number, size) for number in range(size))


async def test_abort_frees_every_waiter_at_once(ranks: RunRanks) -> None:
    entered = asyncio.Barrier(3)

    async def main(rank: int) -> list[BaseException | None]:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        works: list[dist.Work[object]] = [dist.irecv(np.zeros(1), (rank + 1) % 3, group)]
        if rank != 2:
            works.append(dist.all_reduce(np.ones(2), group=group))
        await entered.wait()
        if rank == 0:
            group.abort()
            assert all(work.is_completed() for work in works)
            group.abort()
        errors = [await outcome(work) for work in works]
        with pytest.raises(dist.DistError) as caught:
            dist.barrier(group)
        await dist.barrier()
        return [*errors, caught.value]

    results = await ranks(3, main)
    for error in results[0]:
        assert isinstance(error, dist.GroupClosedError)
        assert "rank 0 aborted" in str(error)
    assert isinstance(results[1][1], dist.CollectiveCancelledError)
    for error in (results[1][0], results[1][2], *results[2]):
        assert isinstance(error, dist.GroupRevokedError), results
    for errors in results[1:]:
        assert all(getattr(error, "rank", None) == 0 for error in errors)


async def test_abort_of_the_world_leaves_it_empty(ranks: RunRanks) -> None:
    entered = asyncio.Barrier(2)

    async def main(rank: int) -> BaseException | None:
        pair = await dist.new_group([0, 1])
        await dist.barrier()
        works = [dist.irecv(np.zeros(1), 1 - rank, group) for group in (None, pair)]
        await entered.wait()
        if rank == 0:
            await dist.abort_process_group()
            assert not dist.is_initialized()
            for work in works:
                assert isinstance(work.exception(), dist.GroupClosedError)
            with pytest.raises(
                dist.NotInitializedError, match=r"abort_process_group\(\) closed it"
            ):
                dist.barrier()
            return None
        errors = [await outcome(work) for work in works]
        assert all(isinstance(error, dist.DistError) for error in errors)
        return errors[0]

    async def quietly(rank: int) -> BaseException | None:
        error = await main(rank)
        if rank == 0:  # for run_ranks, which destroys the world at the end
            await dist.init_process_group(rank=0, world_size=1)
        return error

    results = await ranks(2, quietly)
    assert isinstance(results[1], (dist.GroupRevokedError, dist.PeerLostError))


async def test_a_world_closes_all_parts_although_one_of_them_raises() -> None:
    closed: list[str] = []

    async def close(part: str) -> None:
        closed.append(part)
        raise OSError(part)

    world = World()
    for part in ("store", "memory"):
        world.on_close(partial(close, part), lambda: None)
    with pytest.raises(OSError, match="memory"):
        await world.close()
    assert closed == ["store", "memory"]


async def test_abort_of_one_group_leaves_the_others(inproc: RunRanks) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        await dist.barrier(group)
        if rank == 0:
            await dist.abort_process_group(group)
            with pytest.raises(dist.GroupClosedError):
                dist.barrier(group)
        else:
            error = await outcome(dist.irecv(np.zeros(1), 0, group))
            assert isinstance(error, dist.GroupRevokedError)
        await dist.barrier()

    await inproc(2, main)


async def test_the_error_about_a_dead_rank_names_it_its_host_its_operation_and_the_rank_that_noticed(
    streams: RunRanks,
) -> None:
    """Also on rank 3, which never talked to it."""
    cut = asyncio.Event()
    over = asyncio.Barrier(4)

    async def main(rank: int) -> BaseException | None:
        group = await dist.new_group([0, 2])
        if rank == 2:
            await dist.send(np.ones(3), 0, group, tag=5)
            await dist.all_reduce(np.ones(3, np.float32), group=group)
            for connection in current_world().endpoint.connections():
                connection.abort()
            cut.set()
            error = None
        else:
            if rank == 0:
                await dist.recv(np.zeros(3), 2, group, tag=5)
                await dist.all_reduce(np.ones(3, np.float32), group=group)
            await cut.wait()
            await until(lambda: current_world().default_group()._error is not None)
            with pytest.raises(dist.PeerLostError) as caught:
                dist.barrier()
            error = caught.value
        await over.wait()
        return error

    errors = await streams(4, main)
    noticed = {}
    for rank in (0, 1, 3):
        error = errors[rank]
        assert isinstance(error, dist.PeerLostError)
        assert (error.rank, error.host, error.pid) == (2, socket.gethostname(), os.getpid())
        noticed[rank] = error.noticed_by
        assert f"rank {error.noticed_by} noticed" in str(error)
        assert error.last in str(error)
        twin = pickle.loads(pickle.dumps(error))
        assert (str(twin), twin.fields) == (str(error), error.fields)
    assert set(noticed.values()) <= {0, 1, 3}
    for error in (errors[0], errors[1], errors[3]):
        if error.noticed_by == 0:
            last = "all_reduce(3 x float32, SUM), operation 0 of 'group#0'"
            assert error.last == f"the last that came from it: {last}"


async def test_a_rank_that_never_said_anything(inproc: RunRanks) -> None:
    async def main(rank: int) -> BaseException | None:
        if rank == 1:
            return None
        work = dist.irecv(np.zeros(1), 1)
        return await outcome(work)

    error = (await inproc(2, main))[0]
    assert isinstance(error, dist.PeerLostError)
    assert error.last == ""
    assert "no message ever came from it; rank 0 noticed" in str(error)


async def test_an_error_names_a_lost_ranks_last_collective_in_shared_memory() -> None:
    """There collectives send no messages, so that none has come."""

    async def main(rank: int) -> dist.PeerLostError | None:
        for _ in range(3):
            await dist.all_reduce(np.ones(4, np.float32))
        if rank == 1:
            return None
        error = await outcome(dist.all_reduce(np.ones(4, np.float32)))
        assert isinstance(error, dist.PeerLostError)
        return error

    error = (await run_ranks(2, main, "shm"))[0]
    assert error is not None
    finished = "finished all_reduce(4 x float32, SUM), operation 2 of 'default_pg'"
    assert error.last == f"it last {finished}, in shared memory"
    assert f"; {error.last}; rank 0 noticed" in str(error)


async def test_a_failed_operation_is_not_reported_as_finished() -> None:
    over = asyncio.Barrier(2)

    async def main(rank: int) -> list[str]:
        group = dist.group.WORLD
        assert group is not None
        told = [engine_of(group).last_in_memory(1 - rank)]
        for shape in (4, 4 + rank):
            await outcome(dist.all_reduce(np.ones(shape)))
            await over.wait()
            told.append(engine_of(group).last_in_memory(1 - rank))
            await over.wait()
        return told

    finished = "finished all_reduce(4 x float64, SUM), operation 0 of 'default_pg'"
    told = ["", finished, "left operation 1 of 'default_pg'"]
    assert await run_ranks(2, main, "shm") == [told, told]


async def test_a_cause_that_is_not_ours_is_chained(inproc: RunRanks) -> None:
    cause = OSError(113, "No route to host")
    over = asyncio.Barrier(2)

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        error = None
        if rank == 0:
            work = dist.irecv(np.zeros(1), 1)
            endpoint = current_world().endpoint
            for link in list(endpoint.peer(1).links):
                endpoint.link_lost(link, cause)
                link.connection.abort()
            error = await outcome(work)
        await over.wait()
        return error

    error = (await inproc(2, main))[0]
    assert isinstance(error, dist.PeerLostError)
    assert "No route to host" in str(error)
    assert error.__cause__ is cause
    assert pickle.loads(pickle.dumps(error)).fields == error.fields


Start = Callable[[], dist.Work[None]]


@pytest.mark.parametrize("wait_all_ranks", [True, False, None])
async def test_a_timeout_lists_all_that_are_missing_with_what_they_did_last(
    ranks: RunRanks, wait_all_ranks: bool | None
) -> None:
    monitored = wait_all_ranks is not None  # which names all whatever is asked for
    over, met = asyncio.Event(), asyncio.Barrier(4)
    entered = asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        await barrier_of_all(met)
        if rank != 3:
            await dist.send(np.zeros(2), 3, tag=rank)
        if rank >= 2:
            await over.wait()
        limit = 0.1 if rank == 1 else None
        start: Start
        if wait_all_ranks is not None:

            def start() -> dist.Work[None]:
                return dist.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
        else:

            def start() -> dist.Work[None]:
                return dist.all_reduce(np.zeros((2, 3), np.int16), timeout=limit)

        if rank == 1:
            await entered.wait()
        work = start()
        if rank == 0:
            entered.set()
        error = await outcome(work)
        over.set()
        await dist.barrier()
        return error

    for error in await ranks(4, main):
        assert isinstance(error, dist.CollectiveTimeoutError)
        assert error.operation == ("monitored_barrier" if monitored else "all_reduce")
        assert (error.sequence, error.group, error.rank) == (1, "default_pg", 1)
        assert error.waiting_for == (2, 3)
        assert list(error.last_finished) == ["barrier(), operation 0"] * 2
        assert error.tensor == ("" if monitored else "6 x int16, shape (2, 3)")
        assert "ranks 2, 3 did not enter it" in str(error)
        told = "finished barrier(), operation 0 last, and is in no operation"
        assert f"(rank 2 {told}; rank 3 {told})" in str(error)
        assert list(error.doing) == ["is in no operation"] * 2
        assert ("the tensor here: 6 x int16, shape (2, 3);" in str(error)) != monitored
        twin = pickle.loads(pickle.dumps(error))
        assert (str(twin), twin.fields) == (str(error), error.fields)


async def test_a_message_that_times_out_says_its_tensor(streams: RunRanks) -> None:
    over = asyncio.Event()

    async def main(rank: int) -> None:
        if rank == 1:
            await over.wait()
            return
        ones = np.ones((2, 3), np.int16)
        limit = 0.05
        starts = {
            "6 x int16, shape (2, 3)": dist.irecv(ones, 1, tag=1, timeout=limit),
            "1048576 x float32, shape (1048576,)": dist.isend(
                np.zeros(1 << 20, np.float32), 1, timeout=limit
            ),
            "": dist.recv(src=1, tag=2, timeout=limit),
        }
        for tensor, work in starts.items():
            error = await outcome(work)
            assert isinstance(error, dist.CollectiveTimeoutError)
            assert error.tensor == tensor
            assert (f"the tensor here: {tensor};" in str(error)) == bool(tensor)
        over.set()

    await streams(2, main)


async def test_a_monitored_barrier_holds_all_until_all_are_there(inproc: RunRanks) -> None:
    arrived: list[int] = []

    async def main(rank: int) -> None:
        for _ in range(rank * 3):
            await asyncio.sleep(0)
        arrived.append(rank)
        await dist.monitored_barrier(None, 10.0, False)
        assert len(arrived) == 4

    await inproc(4, main)
