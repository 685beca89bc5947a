"""Several ranks, each in a thread with a world of its own, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist
import aiodist.sync as dist
from aiodist.testing import run_ranks

RunThreads = Callable[..., list[Any]]


def test_messages_and_objects(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        if rank == 0:
            data = np.arange(6.0)
            assert dist.send(data, 1) is None
            assert dist.send(data, dst=1, tag=5) is None
            work = dist.isend(data, 1)
            assert work is not None
            assert work.wait()
            dist.send_object_list([1, "two"], 1)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, data, 1)])
        else:
            into = np.zeros(6)
            assert dist.recv(into) == 0
            assert dist.recv(into, 0, tag=5) == 0
            received = dist.recv()
            assert isinstance(received, dist.Received)
            assert received.source == 0
            assert received.tensor.tolist() == into.tolist() == [0, 1, 2, 3, 4, 5]
            objects: list[Any] = [None, None]
            assert dist.recv_object_list(objects, 0) == 0
            assert objects == [1, "two"]
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, into, 0)])
        for work in works:
            work.wait()
        if rank == 1:
            assert works[0].source_rank() == 0

    run_threads(2, main)


def test_single_objects_and_tensors_of_unknown_shapes(run_threads: RunThreads) -> None:
    rows = [[number] for number in range(20_000)]

    def main(rank: int) -> None:
        if rank == 0:
            dist.send_object({"array": np.ones(1 << 20, np.uint8)}, 1, tag=3)
            dist.send_object(rows, 1)
            dist.send_object("short", 1)
        else:
            obj, source = dist.recv_object(0, tag=3)
            assert obj["array"].sum() == 1 << 20
            assert source == 0
            assert dist.recv_object() == (rows, 0)
            assert dist.recv_object(0) == ("short", 0)
        found = dist.broadcast_new(np.arange(3) if rank == 0 else None, 0)
        assert found.tolist() == [0, 1, 2]
        gathered = dist.all_gather_new(np.full(rank + 1, rank))
        assert [each.tolist() for each in gathered] == [[0], [1, 1]]

    run_threads(2, main)


def test_groups_of_some_ranks_and_a_rank_outside(run_threads: RunThreads) -> None:
    def main(rank: int) -> list[float]:
        group = dist.new_group([1, 0])
        data = np.full(2, rank + 1.0)
        if rank == 2:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == -1
            with pytest.warns(UserWarning, match="running all_reduce on global rank 2"):
                assert dist.all_reduce(data, group=group) is None
            with pytest.warns(UserWarning, match="recv"):
                assert dist.recv(data, 0, group=group) == -1
            with pytest.warns(UserWarning, match="recv_object"):
                assert dist.recv_object(0, group=group) == (None, -1)
            with pytest.warns(UserWarning, match="recv_object_list"):
                assert dist.recv_object_list([None], 0, group=group) == -1
            with pytest.warns(UserWarning, match="all_gather_new"):
                assert dist.all_gather_new(data, group=group) == []
        else:
            assert isinstance(group, dist.ProcessGroup)
            assert group.rank() == rank  # numbered from the lowest rank up, as in torch
            dist.all_reduce(data, group=group)
        dist.barrier()
        return data.tolist()

    # Warnings are caught process-wide, so only rank 2 may look for them.
    assert run_threads(3, main) == [[3, 3], [3, 3], [3, 3]]


def test_threads_of_one_rank_use_different_groups_at_once(run_threads: RunThreads) -> None:
    """A Work may be made in one thread and waited for in another."""

    def main(rank: int) -> list[float]:
        from contextvars import copy_context

        groups = [dist.new_group([0, 1]) for _ in range(3)]
        results = [np.full(4, float(i)) for i in range(3)]
        works: list[Any] = [None] * 3

        def one(number: int) -> None:
            for _ in range(50):
                dist.all_reduce(results[number], dist.ReduceOp.MAX, groups[number])
            works[number] = dist.all_reduce(results[number], group=groups[number], async_op=True)

        threads = [
            threading.Thread(target=copy_context().run, args=(one, number)) for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for work in works:
            assert work.wait()
        return [float(result[0]) for result in results]

    assert run_threads(2, main) == [[0, 2, 4], [0, 2, 4]]


def test_ranks_that_disagree_get_the_same_error_and_no_cycle(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        with pytest.raises(dist.CollectiveMismatchError):
            dist.all_reduce(np.zeros(2 + rank))
        dist.barrier()

    run_threads(2, main)


def test_a_work_fails_in_the_thread_that_waits(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        dist.barrier()
        if rank == 1:
            return  # leaves
        work = dist.irecv(np.zeros(1), 1)
        assert work is not None
        with pytest.raises(dist.PeerLostError, match="rank 1"):
            work.wait()

    run_threads(2, main)


async def test_a_running_loop_is_not_blocked() -> None:
    for call in (dist.barrier, dist.init_process_group, dist.destroy_process_group):
        with pytest.raises(dist.InvalidUsageError, match="import aiodist as dist; await dist"):
            call()
    with pytest.raises(dist.InvalidUsageError, match="block the event loop"):
        dist.HashStore()
    await asyncio.to_thread(check_in_thread)


def check_in_thread() -> None:
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.timeout(20)
async def test_a_cell_does_not_wait_for_a_group_that_lives_on_its_kernels_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def on_rank(rank: int) -> None:
        with pytest.raises(dist.InvalidUsageError, match=r"await dist\.monitored_barrier"):
            dist.monitored_barrier()
        for call in (dist.barrier, partial(dist.recv, src=1 - rank), dist.new_group):
            with pytest.raises(dist.InvalidUsageError, match="use the async API here"):
                call()
        await aiodist.barrier()

    monkeypatch.setattr("aiodist.sync.portal._in_notebook", lambda: True)
    await run_ranks(2, on_rank)


@pytest.mark.timeout(20)
def test_a_thread_does_not_wait_for_a_group_on_a_loop_that_it_runs_itself() -> None:
    loop = asyncio.new_event_loop()
    store = aiodist.MemoryStore()
    loop.run_until_complete(aiodist.init_process_group(store=store, rank=0, world_size=1))
    try:
        for call in (partial(dist.all_reduce, np.ones(1)), dist.new_group):
            with pytest.raises(dist.InvalidUsageError, match="Await the async API there"):
                call()
        running = threading.Thread(target=loop.run_forever)
        running.start()
        dist.all_reduce(np.ones(1))
        loop.call_soon_threadsafe(loop.stop)
        running.join()
    finally:
        loop.run_until_complete(aiodist.destroy_process_group())
        loop.close()


def test_without_uvloop_asyncios_loop_serves(
    monkeypatch: pytest.MonkeyPatch, run_threads: RunThreads
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)

    def main(rank: int) -> float:
        data = np.ones(1)
        dist.all_reduce(data)
        return float(data[0])

    assert run_threads(2, main) == [2, 2]
