"""A rank on a host of its own: ``python -m tests.faults.host_rank RANK SIZE URL PHASE TIMEOUT``.

Says ``ready`` on stdout, waits for a line on stdin, and tells in a line of JSON how it ended. In the phase
"meeting" the last rank of SIZE never comes, and ``ready`` means that all others have.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.deadline import Deadline
from aiodist.rendezvous import meeting
from aiodist.store import Store, exchange
from tests.faults.rank import connect_everybody, describe, error_of

arrived: list[float] = []


async def when_all_are_there(
    store: Store, rank: int, size: int, value: bytes, deadline: Deadline, **stops: Any
) -> list[bytes]:
    work = asyncio.ensure_future(exchange(store, rank, size, value, deadline, **stops))
    await store.wait([f"exchange/{other}" for other in range(size - 1)], deadline)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    arrived.append(time.monotonic())
    return await work


async def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    url, phase, timeout = sys.argv[3:]
    if phase == "meeting":
        meeting.exchange = when_all_are_there
    init = dist.init_process_group(
        init_method=url, rank=rank, world_size=size, timeout=float(timeout)
    )
    if phase == "meeting":
        error = await error_of(init)
        facts = {"seconds": time.monotonic() - arrived[0], **describe(error)}
        print(json.dumps(facts | {"not_arrived": getattr(error, "not_arrived", None)}), flush=True)
        return
    await init
    if phase != "connecting":
        await connect_everybody(size)
    enters = phase == "in all_reduce" and rank < size - 1
    work = dist.all_reduce(np.ones(4)) if enters else None
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    begin = time.monotonic()
    error = await error_of(work or dist.all_reduce(np.ones(4)))
    facts = {"seconds": time.monotonic() - begin, **describe(error)}
    await dist.destroy_process_group()
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
