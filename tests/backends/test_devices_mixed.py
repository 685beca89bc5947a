"""One collective, and tensors of the CPU on some ranks, of a device on others: all hear of it.

Such a device's memory is played by a thread that copies, or by memory that ranks map.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from types import MappingProxyType

import pytest
import torch

import aiodist as dist
from aiodist.backends.devices.backend import DeviceBackend
from aiodist.errors import CollectiveMismatchError
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks
from tests.backends.copy_engine import copied_by_thread
from tests.backends.devices.memfd import MemfdMemory

HALF = 1 << 16
LENGTHS = (1, 5_000, 700_000)
"""What fits in a slot of shared memory; what takes some chunks, and many."""

Call = Callable[[torch.Tensor], Awaitable[None]]

CALLS: MappingProxyType[str, Call] = MappingProxyType(
    {
        "all_reduce": lambda tensor: dist.all_reduce(tensor),
        "broadcast from the CPU": lambda tensor: dist.broadcast(tensor, 0),
        "broadcast from the device": lambda tensor: dist.broadcast(tensor, 1),
    }
)
ON_DEVICE = 1
"""The rank whose tensors are there."""
SIDES = re.compile(
    r"rank (\d) called \w+\([^)]*\) with its tensor on (a GPU|the CPU), "
    r"rank (\d) with its tensor on (a GPU|the CPU); .*: move them by \.cpu\(\) or \.cuda\(\)"
)


async def refused(call: Call, tensor: torch.Tensor) -> bool:
    """Return whether this rank raised CollectiveMismatchError, and check its text."""
    try:
        await call(tensor)
    except CollectiveMismatchError as error:
        told = str(error)
    else:
        return False
    sides = SIDES.search(told)
    assert sides is not None, told
    for rank, place in (sides.group(1, 2), sides.group(3, 4)):
        assert (place == "a GPU") == (int(rank) == ON_DEVICE), told
    return True


async def check(rank: int, name: str) -> None:
    """Check that a rank that waits for another one raises the error.

    A root does not wait; a rank that has already received the root's data may have completed too.
    """
    root = {"from the CPU": 0, "from the device": ON_DEVICE}.get(name[10:])
    for length in LENGTHS:
        tensor = torch.full((length,), rank + 1.0)
        tensor.is_there = rank == ON_DEVICE  # type: ignore[attr-defined]
        told = await refused(CALLS[name], tensor)
        waits = rank != root and (rank == ON_DEVICE or root != 0)
        assert told or not waits
        await dist.barrier()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("size", "transport", "hosts"),
    [(2, "inproc", ()), (2, "shm", ()), (3, "shm", ()), (4, "shm", (0, 0, 1, 1))],
)
async def test_copied_in_the_background(
    name: str, size: int, transport: str, hosts: tuple[int, ...]
) -> None:
    with copied_by_thread(lambda tensor: getattr(tensor, "is_there", False)):
        await run_ranks(size, lambda rank: check(rank, name), transport, hosts=hosts, timeout=20)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("size", "transport"), [(2, "inproc"), (2, "shm"), (3, "shm")])
async def test_in_memory_that_ranks_map(name: str, size: int, transport: str) -> None:
    memory = MemfdMemory()

    async def body(rank: int) -> None:
        if rank == ON_DEVICE:
            group = current_world().default_group()
            group.backend = DeviceBackend(group, lambda device: memory, "cpu", HALF, small=0)
        await check(rank, name)

    try:
        await run_ranks(size, body, transport, timeout=20)
    finally:
        memory.close()
