"""Run as a process of its own, one rank of two: how much memory an operation takes beyond tensors.

    python memory_probe.py FILE RANK SCENARIO MEBIBYTES

prints one line of JSON: what the resident memory grew by at its highest, in bytes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np

import aiodist as dist
from aiodist.groups.world import current_world

MIB = 1 << 20


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


class Growth:
    """The highest resident memory since it was made, over the one at that time."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        self.start = _status("VmRSS")

    def so_far(self) -> int:
        return max(0, _status("VmHWM") - self.start)


async def warm_up(rank: int) -> None:
    """Connections, imports and first-use tables are no part of what is measured."""
    data = np.ones(2 * MIB // 4, np.float32)
    await dist.all_reduce(data)
    if rank == 0:
        await dist.send(data, 1)
    else:
        await dist.recv(data, 0)


async def send(rank: int, mebibytes: int) -> int:
    data = np.ones(mebibytes * MIB // 4, np.float32)
    growth = Growth()
    if rank == 0:
        await dist.send(data, 1)
    else:
        await dist.recv(data, 0)
    return growth.so_far()


async def all_reduce(rank: int, mebibytes: int) -> int:
    data = np.ones(mebibytes * MIB // 4, np.float32)
    growth = Growth()
    await dist.all_reduce(data)
    assert (data[:: MIB // 3] == 2).all()
    return growth.so_far()


async def _flood(rank: int, mebibytes: int, each: int) -> int:
    """Rank 1 looks on while it is flooded, then takes everything, in order."""
    count = mebibytes * MIB // max(each, 4096)
    done = np.zeros(1)
    if rank == 0:
        payload = np.zeros(each // 4, np.float32)
        works = []
        for number in range(count):
            data = payload.copy() if each <= 4096 else payload
            data[0] = number if each <= 4096 else 0
            works.append(dist.isend(data, 1, tag=1))
        await dist.recv(done, 1, tag=2)  # a receive for another tag, the other way and this way
        await dist.send(done, 1, tag=3)
        for work in works:
            await work
        await dist.barrier()
        return 0
    growth = Growth()
    await dist.send(done, 0, tag=2)
    await dist.recv(done, 0, tag=3)
    # The flood has had its time: what was to come by itself is here.
    for _ in range(20):
        await asyncio.sleep(0.01)
    held = current_world().endpoint.inbox.matcher.arrived_bytes()
    grown = growth.so_far()
    into = np.empty(each // 4, np.float32)
    for number in range(count):
        await dist.recv(into, 0, tag=1)
        assert into[0] == (number if each <= 4096 else 0)
    await dist.barrier()
    assert held <= current_world().endpoint.window
    return grown


async def flood_small(rank: int, mebibytes: int) -> int:
    return await _flood(rank, mebibytes, 4)


async def flood_eager(rank: int, mebibytes: int) -> int:
    return await _flood(rank, mebibytes, MIB)


async def flood_large(rank: int, mebibytes: int) -> int:
    return await _flood(rank, mebibytes, 8 * MIB)


async def main(path: str, rank: int, scenario: str, mebibytes: int) -> None:
    await dist.init_process_group(init_method=f"file://{path}", rank=rank, world_size=2)
    await warm_up(rank)
    scenarios = {
        run.__name__: run for run in (send, all_reduce, flood_small, flood_eager, flood_large)
    }
    grown = await scenarios[scenario](rank, mebibytes)
    print(json.dumps({"rank": rank, "grown": grown}))
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
