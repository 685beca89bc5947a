"""The smallest async program: a collective is awaited, and the event loop goes on meanwhile.

aiodist run -n 2 examples/async_all_reduce.py
"""

from __future__ import annotations

import asyncio

import torch

import aiodist as dist


async def main() -> None:
    """Sum one tensor over all ranks while another task of the program runs on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    await dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    ticker = asyncio.create_task(tick())

    tensor = torch.full((10_000_000,), float(rank + 1))
    work = dist.all_reduce(tensor)  # it starts here
    await work  # gather, timeouts and cancellation work as with anything that can be awaited

    print(f"rank {rank} of {world}: every element is {tensor[0]:g}; {ticks} ticks meanwhile")
    ticker.cancel()
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
