"""A rank that runs every operation in one way, and compares the results with the CPU's.

    python -m aiodist run -n 3 sharing.py WAY

WAY is "ipc", "ipc-in-steps" (small areas, for all lengths) or "staging" for CUDA tensors. With "memfd" the
tensors are on the CPU, in segments in the place of a GPU's memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import torch

import aiodist as dist
from aiodist.backends.devices import areas
from aiodist.backends.devices.backend import DeviceBackend
from aiodist.backends.mixed import MixedBackend
from aiodist.backends.native import NativeBackend
from aiodist.links.host import host_id
from aiodist.tensors.device_memory import CudaMemory
from tests.backends.devices.memfd import MemfdMemory
from tests.engine.conftest import engine_of
from tests.gpu.delays import delay
from tests.gpu.operations import differing, every_operation

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
HALF = 1 << 16


def choose(way: str) -> str:
    """Have the default group go by ``way``; the device of its tensors."""
    group = engine_of()
    if way == "memfd":
        memory = MemfdMemory(host_id(), str(os.getpid()))
        group.backend = DeviceBackend(group, lambda device: memory, "cpu", HALF, small=0)
        return "cpu"
    if way in ("ipc-in-steps", "ipc-always"):
        half = HALF if way == "ipc-in-steps" else areas.HALF
        group.backend = DeviceBackend(
            group, lambda device: CudaMemory(device, host_id()), "cuda", half, small=0
        )
    if way == "staging":
        group.backend = NativeBackend(group)
    return "cuda"


def areas_of(group: Any) -> int:
    """How many ranks' memory the group has mapped."""
    backend = engine_of(group).backend
    if isinstance(backend, MixedBackend):  # of a device each
        backend = backend.backend_of(torch.zeros(1, device="cuda"))
    return sum(len(each.of) for each in getattr(backend, "_areas", {}).values())


async def turns_during_a_large_collective(device: str, count: int) -> int:
    """How often the event loop has turned, in a collective that waits for the device's earlier work."""
    tensor = torch.arange(count, dtype=torch.float32, device=device) % 1000
    if device == "cuda":
        for _ in range(20):
            delay()
    work = dist.all_reduce(tensor)
    turns = 0
    while not work.is_completed():
        await asyncio.sleep(0)
        turns += 1
    await work
    expected = torch.arange(count, dtype=torch.float32) % 1000 * dist.get_world_size()
    assert torch.equal(tensor.cpu(), expected)
    return turns


async def large_message(device: str) -> None:
    """Rank 0 sends what no message ring has room for. Rank 1 may read it in rank 0's memory."""
    sent = torch.arange(3 << 20, dtype=torch.float32, device=device)
    if dist.get_rank() == 0:
        await dist.send(sent, 1)
    elif dist.get_rank() == 1:
        came = torch.zeros_like(sent)
        await dist.recv(came, 0)
        assert torch.equal(came, sent)


async def main(way: str) -> None:
    await dist.init_process_group("aiodist")
    size = dist.get_world_size()
    counts = (0, 1, 1000, 100_000)
    expected = [await every_operation("cpu", dtype, n) for dtype in DTYPES for n in counts]
    device = choose(way)
    for dtype in DTYPES:
        for count in counts:
            found = await every_operation(device, dtype, count)
            assert differing(found, expected.pop(0)) == [], (way, dtype, count)
    if size > 1:
        await large_message(device)
        count = 1 << (24 if way in ("ipc", "staging") else 20)  # else in many steps as it is
        assert await turns_during_a_large_collective(device, count) > 20
    assert areas_of(dist.group.WORLD) == (0 if way == "staging" else size)
    await dist.destroy_process_group()
    print("equal", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
