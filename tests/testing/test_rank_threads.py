"""`run_ranks` with ordinary functions: a thread a rank, over the blocking API."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import aiodist as dist
import aiodist.sync as blocking
from aiodist.groups.group_engine import GroupEngine
from aiodist.testing import run_ranks

SIZE = 9  # more than asyncio.to_thread has threads on a small machine


@pytest.mark.parametrize("transport", ["inproc", "unix", "shm"])
async def test_blocking_functions_run_in_a_thread_for_each_rank(transport: str) -> None:
    def main(rank: int) -> tuple[float, list[Any], str]:
        data = np.full(3, float(rank))
        blocking.all_reduce(data)
        work = blocking.all_reduce(data, async_op=True)
        assert work is not None
        work.wait()
        ranks: list[Any] = [None] * blocking.get_world_size()
        blocking.all_gather_object(ranks, blocking.get_rank())
        if rank == 0:
            blocking.send(data, 1)
        elif rank == 1:
            blocking.recv(data, 0)
        return data[0], ranks, threading.current_thread().name

    results = await run_ranks(SIZE, main, transport, threads=True)
    total = SIZE * (SIZE - 1) / 2 * SIZE
    assert results == [(total, list(range(SIZE)), f"rank {rank}") for rank in range(SIZE)]


async def test_operations_that_do_not_block_start_in_the_loop_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, threads = GroupEngine.start, set()

    def noted(self: Any, *args: Any) -> Any:
        threads.add(threading.current_thread())
        return start(self, *args)

    monkeypatch.setattr(GroupEngine, "start", noted)

    def main(rank: int) -> None:
        other, data, summed = 1 - rank, np.full(200_000, float(rank)), np.ones(2)
        with blocking._coalescing_manager():
            blocking.all_reduce(summed)
        assert summed[0] == 2
        operations = [
            blocking.P2POp(blocking.isend, np.full(200_000, float(rank)), other),
            blocking.P2POp(blocking.irecv, data, other),
        ]
        for work in blocking.batch_isend_irecv(operations):
            work.wait()
        assert (data == other).all()
        received = blocking.irecv(data)
        sent = blocking.isend(np.zeros(200_000), other)
        assert received is not None
        assert sent is not None
        sent.wait()
        received.wait()
        assert received.source_rank() == other
        for _ in range(20):
            works = [blocking.all_reduce(summed, async_op=True) for _ in range(2)]
            for each in works:
                assert each is not None
                each.wait()

    await run_ranks(2, main, threads=True, timeout=20)
    assert threads == {threading.main_thread()}


async def test_the_first_error_ends_the_threads_that_are_blocked() -> None:
    ended: list[BaseException] = []

    def main(rank: int) -> None:
        if rank == 1:
            raise KeyError("x")
        try:
            blocking.barrier()
        except dist.DistError as error:
            ended.append(error)
            raise

    with pytest.raises(KeyError) as caught:
        await run_ranks(3, main, threads=True)
    assert caught.value.__notes__ == ["run_ranks: rank 1 of 3 raised this"]
    assert len(ended) == 2


async def test_what_needs_the_loop_itself_names_the_api_to_call_there() -> None:
    def main(rank: int) -> None:
        for call in (blocking.new_group, blocking.shrink, blocking.destroy_process_group):
            with pytest.raises(
                dist.InvalidUsageError, match=r"function of aiodist, not of aiodist\.sync"
            ):
                call()

    await run_ranks(1, main, threads=True)


async def test_a_blocking_function_may_raise_stop_iteration() -> None:
    def main(rank: int) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="fn raised StopIteration"):
        await run_ranks(1, main, threads=True)


async def test_an_async_function_is_refused_with_threads() -> None:
    async def main(rank: int) -> None:
        await dist.barrier()

    with pytest.raises(TypeError, match="with threads=True fn must be an ordinary function"):
        await run_ranks(2, main, threads=True)
