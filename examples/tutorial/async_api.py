"""The async API: operations are awaited, and the event loop goes on meanwhile.

aiodist run -n 2 examples/tutorial/async_api.py
"""

import asyncio

import torch

import aiodist as dist


async def main() -> None:
    """Sum a tensor over the ranks, and send what is worth sending."""
    async with dist.process_group():
        rank = dist.get_rank()
        total = torch.full((3,), float(rank + 1))
        await dist.all_reduce(total)  # in place, on all ranks
        print("the sum is", total.tolist())

        if rank == 0:
            await dist.send(torch.arange(4), dst=1)
        elif rank == 1:
            message = await dist.recv()  # shape and dtype travel with the data
            print("rank", message.source, "sent", message.tensor.tolist())


if __name__ == "__main__":
    asyncio.run(main())
