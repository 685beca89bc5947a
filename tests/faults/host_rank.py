"""A rank on a host of its own: ``python -m tests.faults.host_rank RANK SIZE STORE PHASE TIMEOUT``.

Says ``ready`` on stdout, waits for a line on stdin, and tells in a line of JSON how it ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import numpy as np

import aiodist as dist
from tests.faults.rank import connect_everybody, describe, error_of


async def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    store, phase, timeout = sys.argv[3:]
    await dist.init_process_group(
        init_method=f"file://{store}", rank=rank, world_size=size, timeout=float(timeout)
    )
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
