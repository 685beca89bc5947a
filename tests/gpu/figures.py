"""Seconds that operations take on two ranks by one way, as JSON: ``figures.py WAY NBYTES ROUNDS``."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import torch

import aiodist as dist
from tests.gpu.sharing import choose


async def main(way: str, nbytes: int, rounds: int) -> None:
    await dist.init_process_group("aiodist")
    device = choose(way)
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(nbytes // 4, device=device)
    whole = torch.ones(size * tensor.numel(), device=device)
    operations = {
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "all_reduce": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, tensor),
    }
    taken: dict[str, list[float]] = {name: [] for name in operations}
    for operation in operations.values():
        await operation()  # lays out what it needs
    for _ in range(rounds):
        for name, operation in operations.items():
            await dist.barrier()
            start = time.perf_counter()
            await operation()
            taken[name].append(time.perf_counter() - start)
    await dist.destroy_process_group()
    if rank == 0:
        print("figures", json.dumps(taken), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
