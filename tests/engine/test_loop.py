"""The event loop runs on while large operations are under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends import gradual_copy
from aiodist.groups.work import Work
from aiodist.p2p import shm_progress
from tests.engine.conftest import RunRanks

MIB = 1 << 20
LARGE = 64 * MIB


async def watch(gaps: list[float]) -> None:
    """How long others hold the loop, in seconds of this thread: the machine may be busy."""
    last = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        gaps.append(now - last)
        last = now


def twice(array: Any) -> Any:
    """An array of double length: a message takes a few turns only, as it is copied once."""
    return np.zeros(2 * len(array), array.dtype)


OPERATIONS: dict[str, Callable[[int, Any, Any], Work[Any]]] = {
    "send": lambda rank, a, _: dist.isend(twice(a), 1) if rank == 0 else dist.irecv(twice(a), 0),
    "all_reduce": lambda rank, a, _: dist.all_reduce(a),
    "average of integers": lambda rank, a, _: dist.all_reduce(
        a.view(np.int32), op=dist.ReduceOp.AVG
    ),
    "broadcast": lambda rank, a, _: dist.broadcast(a, 0),
    "all_reduce of a transposed array": lambda rank, a, _: dist.all_reduce(
        a.reshape(1 << 12, -1).T
    ),
    "coalesced": lambda rank, a, half: dist.all_reduce_coalesced([a, half]),
    "reduce_scatter": lambda rank, a, half: dist.reduce_scatter_tensor(
        half, a, op=dist.ReduceOp.AVG
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_ticker_runs_on_during_a_large_operation(
    ranks: RunRanks,
    scaled: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    """Both ranks share the loop here, so the gaps of two add up; typical is 10 ms at most."""
    gaps: list[float] = []
    # A message that is read out of the sender's memory lets the loop run each time this is over: here after
    # each piece, as a fast machine reads 128 MiB in a few milliseconds.
    monkeypatch.setattr(shm_progress, "TURN_SECONDS", 0.0)

    async def main(rank: int) -> None:
        data, half = np.ones(LARGE // 4, np.float32), np.ones(LARGE // 8, np.float32)
        await dist.barrier()
        ticker = asyncio.create_task(watch(gaps)) if rank == 0 else None
        await asyncio.sleep(0)
        await OPERATIONS[operation](rank, data, half)
        if ticker is not None:
            ticker.cancel()

    await ranks(2, main)
    assert len(gaps) > 16
    assert max(gaps) < scaled(0.25)


async def test_work_in_turns_touches_every_element_once(
    inproc: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradual_copy, "STEP", 100)

    async def main(rank: int) -> None:
        for size in (0, 1, 12, 13, 1000):
            data = np.full(size, 3.0 + rank)
            await dist.all_reduce(data, op=dist.ReduceOp.AVG)
            assert (data == 3.5).all()
            data = np.full((size, 3), 1.0).T
            await dist.all_reduce(data, op=dist.ReduceOp.premul_sum(2.0))
            assert (data == 4.0).all()

    await inproc(2, main)
