"""A rank whose host, or whose link, has a fault: ``fault_rank.py PHASE``.

It says ``ready`` on stdout, waits for a line on stdin, and tells in a line of JSON how it ended. In the
phases ``in ...`` the ranks of all hosts but the last are in an operation when the fault comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any

import numpy as np

import aiodist as dist
from tests.faults.cells import USUAL_SECONDS
from tests.faults.rank import connect_everybody, describe, error_of

LAST_HOST = 2
"""Ranks of the last host, which has the fault."""

LARGE = 4 << 20
"""Elements of 4 bytes."""

ROUNDS = 6
ROUND_ELEMENTS = 1 << 18


async def broadcast_from_the_last() -> None:
    """Receive from a rank of the last host."""
    await dist.broadcast(np.ones(4), src=dist.get_world_size() - 1)


PHASES = MappingProxyType[str, Callable[[], Awaitable[Any]]](
    {
        "in all_reduce of 4 B": lambda: dist.all_reduce(np.ones(1, np.float32)),
        "in all_reduce of 16 MiB": lambda: dist.all_reduce(np.ones(LARGE, np.float32)),
        "in barrier": dist.barrier,
        "in broadcast": broadcast_from_the_last,
    }
)
IDLE = "idle"
THROUGHOUT = "throughout"
"""The operations go on while the link changes, and succeed."""


async def told_to_go_on() -> None:
    """Say that this rank is ready, and wait for a line."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def rounds() -> None:
    """Reduce several times, and check each result."""
    size = dist.get_world_size()
    for number in range(ROUNDS):
        values = np.full(ROUND_ELEMENTS, number + 1.0, np.float32)
        await dist.all_reduce(values)
        assert (values == size * (number + 1.0)).all()


async def main() -> None:
    phase = sys.argv[1]
    await dist.init_process_group(timeout=USUAL_SECONDS)
    size, rank = dist.get_world_size(), int(os.environ["RANK"])
    await connect_everybody(size)
    before = 0.0
    if phase == THROUGHOUT:
        begin = time.monotonic()
        await rounds()
        before = time.monotonic() - begin
    entered = phase in PHASES and rank < size - LAST_HOST
    work = asyncio.ensure_future(PHASES[phase]()) if entered else None
    await told_to_go_on()
    begin = time.monotonic()
    if phase == THROUGHOUT:
        error = await error_of(rounds())
    else:
        error = await error_of(PHASES.get(phase, dist.barrier)() if work is None else work)
    facts = {"before": before, "seconds": time.monotonic() - begin, **describe(error)}
    await dist.destroy_process_group()
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
