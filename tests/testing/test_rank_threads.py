"""`run_ranks` with ordinary functions: a thread a rank, over the blocking API."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import aiodist as dist
import aiodist.sync as blocking
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
