"""Ranks that wait for hours cost nothing: they sleep until they are woken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.conftest import ranks_of
from tests.warm_python import WarmPython

RANKS = 16
SECONDS = 2.0
"""The length of each of the three measurements, after the waiting ranks have fallen asleep."""

WAITING = """
import asyncio, json, sys, time
import numpy as np
import aiodist as dist

STORE, RANK, RANKS, SECONDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


async def idle(name, operation, seconds_used):
    # Rank 0 enters the operation late; the others wait in it.
    work = operation() if RANK else None
    await asyncio.sleep(1)
    seconds_used[name] = []
    for _ in range(3):
        before = time.process_time()
        await asyncio.sleep(SECONDS)
        seconds_used[name].append(time.process_time() - before)
    if work is None:
        work = operation()
    await work


async def message(x):
    if RANK:
        await dist.recv(x, 0)
    else:
        await asyncio.gather(*(dist.send(x, rank) for rank in range(1, RANKS)))


async def main():
    await dist.init_process_group(init_method=f"file://{STORE}", rank=RANK, world_size=RANKS)
    x, seconds_used = np.ones(4), {}
    await idle("before the first collective", lambda: dist.broadcast(x, 0), seconds_used)
    await idle("after it", lambda: dist.broadcast(x, 0), seconds_used)
    await idle("in a receive", lambda: asyncio.ensure_future(message(x)), seconds_used)
    print(json.dumps(seconds_used), flush=True)
    await dist.barrier()
    await dist.destroy_process_group()


asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_idle_ranks_use_less_than_a_hundredth_of_a_core_together(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """CPU time of all threads of all ranks. A busy machine adds to it, and never takes away: the
    least of three measurements counts."""
    with ranks_of(WAITING, RANKS, tmp_path, RANKS, SECONDS, python=warm_python.command) as ranks:
        used = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
    share = {
        phase: min(map(sum, zip(*(rank[phase] for rank in used), strict=True))) / SECONDS
        for phase in used[0]
    }
    assert set(share) == {"before the first collective", "after it", "in a receive"}
    assert max(share.values()) < 0.01, share
