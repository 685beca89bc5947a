"""Ranks that wait for hours cost nothing: they sleep until they are woken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.conftest import ranks_of
from tests.warm_python import WarmPython

RANKS = 8
SECONDS = 1.25
"""The length of a measurement, after the waiting ranks have fallen asleep: a heartbeat of each."""

WAKE_UPS = 8
"""A second, of a rank. Its own heartbeats and those of its four peers need up to five in 1.25 s;
a rank that looks every 50 ms whether there is news needs twenty. The time that a wake-up takes
depends on what else runs on the machine, so `benchmarks starting` measures it."""

WAITING = """
import asyncio, json, resource, sys
import numpy as np
import aiodist as dist

STORE, RANK, RANKS, SECONDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


def wake_ups():  # of all threads
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


async def idle(name, operation, found):
    # Rank 0 enters the operation late; the others wait in it.
    work = operation() if RANK else None
    await asyncio.sleep(1)
    before = wake_ups()
    await asyncio.sleep(SECONDS)
    found[name] = (wake_ups() - before) / SECONDS
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
    x, found = np.ones(4), {}
    await idle("before the first collective", lambda: dist.broadcast(x, 0), found)
    await idle("after it", lambda: dist.broadcast(x, 0), found)
    await idle("in a receive", lambda: asyncio.ensure_future(message(x)), found)
    print(json.dumps(found), flush=True)
    await dist.barrier()
    await dist.destroy_process_group()


asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_idle_ranks_sleep_until_they_are_woken(tmp_path: Path, warm_python: WarmPython) -> None:
    with ranks_of(WAITING, RANKS, tmp_path, RANKS, SECONDS, python=warm_python.command) as ranks:
        found = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
    mean = {phase: sum(rank[phase] for rank in found) / RANKS for phase in found[0]}
    assert set(mean) == {"before the first collective", "after it", "in a receive"}
    assert max(mean.values()) < WAKE_UPS, mean
