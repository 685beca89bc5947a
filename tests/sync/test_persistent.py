"""Persistent collectives of the blocking API."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist
import aiodist.sync as dist

RunThreads = Callable[..., list[Any]]


def test_each_start_runs_it_on_what_the_tensors_hold(run_apart: RunThreads) -> None:
    def main(rank: int) -> None:
        data, gathered = np.ones(2), np.zeros(4)
        plan = dist.all_reduce_init(data, "sum")
        for turn in range(3):
            data[:] = rank + turn
            plan.start().wait()
            assert data.tolist() == [1 + 2 * turn] * 2
            data[:] = rank + turn
            plan.run()
            assert data.tolist() == [1 + 2 * turn] * 2
        data[:] = rank
        dist.all_gather_into_tensor_init(gathered, data).run()
        assert gathered.tolist() == [0, 0, 1, 1]
        dist.barrier_init().run()

    run_apart(2, main)


def test_errors_come_from_wait_and_from_run(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        data = np.ones(3)
        plan = dist.all_reduce_init(data)
        for run in (lambda: plan.start().wait(), plan.run):
            with pytest.raises(dist.CollectiveMismatchError):
                run() if rank else dist.barrier()
        data[:] = 1
        plan.run()
        assert data.tolist() == [2] * 3

    run_threads(2, main)


def test_a_block_waits_for_what_is_started_in_it(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        rows = [np.full(100_000, float(rank)) for _ in range(3)]
        plans = [dist.all_reduce_init(row) for row in rows]
        with dist._coalescing_manager():
            for plan in plans:
                plan.run()
        assert all((row == 1).all() for row in rows)

    run_threads(2, main)


def test_a_thread_without_the_context_of_its_rank_runs_it_in_the_loop_of_its_group(
    run_apart: RunThreads,
) -> None:
    def main(rank: int) -> None:
        data = np.ones(2)
        plan = dist.all_reduce_init(data)
        engine: Any = plan._prepared._group
        loops: list[Any] = []
        start = engine.start

        def noting(*args: Any) -> Any:
            loops.append(asyncio._get_running_loop())
            return start(*args)

        engine.start = noting
        for run in (plan.run, lambda: plan.start().wait()):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join(20)
        assert data.tolist() == [4] * 2
        assert loops == [engine.world.its_loop] * 2

    run_apart(2, main)


def test_arguments_are_checked_when_it_is_prepared(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        with pytest.raises(TypeError, match="must be a torch"):
            dist.all_reduce_init("text")
        with pytest.raises(dist.InvalidUsageError):
            dist.broadcast_init(np.ones(1), 5)

    run_threads(2, main)


def test_functions_have_the_signatures_and_docstrings_of_the_async_api() -> None:
    names = [name for name in dist.__all__ if name.endswith("_init")]
    assert len(names) == 7
    for name in names:
        own, theirs = getattr(dist, name), getattr(aiodist, name)
        assert own.__doc__ == theirs.__doc__
        assert inspect.signature(own).parameters == inspect.signature(theirs).parameters
