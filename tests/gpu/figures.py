"""Seconds that operations take on two ranks by one way, as JSON: ``figures.py WAY NBYTES ROUNDS``.

On a GPU also those of rank 0's plain copies of as many bytes, in turn with the operations.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

import torch

import aiodist as dist
from tests.gpu.sharing import choose


def copies_of(tensor: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The floor of what goes through the host, and of what stays on the device."""
    if not tensor.is_cuda:
        return {}
    host = torch.empty(tensor.shape, pin_memory=True)
    other = torch.empty_like(tensor)
    return {
        "plain device to host": lambda: host.copy_(tensor),
        "plain host to device": lambda: other.copy_(host),
        "plain device to device": lambda: other.copy_(tensor),
    }


def wait_for_the_device(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


async def main(way: str, nbytes: int, rounds: int) -> None:
    await dist.init_process_group("aiodist")
    device = choose(way)
    rank, size = dist.get_rank(), dist.get_world_size()
    values = torch.arange(nbytes // 4, dtype=torch.float32, device=device) % 1000
    tensor = torch.empty_like(values)
    whole = values.new_empty(size, values.numel())
    copies = copies_of(tensor)
    # What each is to leave where.
    operations = {
        "broadcast": (lambda: dist.broadcast(tensor, 0), tensor, lambda: values),
        "all_reduce": (
            lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
            tensor,
            lambda: values + (size - 1),
        ),
        "all_gather": (
            lambda: dist.all_gather_into_tensor(whole.view(-1), tensor),
            whole,
            lambda: torch.stack([values + other for other in range(size)]),
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in [*copies, *operations]}
    for round_ in range(-1, rounds):  # the first lays out what they need
        for name, copy in copies.items():
            await dist.barrier()
            if rank == 0:
                wait_for_the_device(device)
                start = time.perf_counter()
                copy()
                wait_for_the_device(device)
                taken[name].append(time.perf_counter() - start)
        for name, (operation, found, expected) in operations.items():
            torch.add(values, rank, out=tensor)
            wait_for_the_device(device)
            await dist.barrier()
            start = time.perf_counter()
            await operation()
            taken[name].append(time.perf_counter() - start)
            assert torch.equal(found, expected()), (name, round_)
    await dist.destroy_process_group()
    if rank == 0:
        print("figures", json.dumps({name: each[1:] for name, each in taken.items()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
