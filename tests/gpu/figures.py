"""Seconds that operations take on two ranks by one way, as JSON: ``figures.py WAY NBYTES ROUNDS``.

On a GPU also those of torch's Gloo on the same tensors and of rank 0's plain copies of as many bytes, in
turn with the operations.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist

import aiodist as dist
from tests.gpu.sharing import choose


class Measured(NamedTuple):
    """``start``: to begin the operation. ``into``: its result, which ``expected()`` tells."""

    start: Callable[[], Awaitable[object]]
    into: torch.Tensor
    expected: Callable[[], torch.Tensor]


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


def operations_on(tensor: torch.Tensor, values: torch.Tensor) -> dict[str, Measured]:
    """aiodist's operations on ``tensor``, which holds ``values`` plus the rank's number."""
    size = dist.get_world_size()
    whole = values.new_empty(size, values.numel())

    async def gloo(start: Callable[[], object]) -> None:
        start()
        wait_for_the_device("cuda")

    def largest() -> torch.Tensor:
        return values + (size - 1)

    def all_of_them() -> torch.Tensor:
        return torch.stack([values + rank for rank in range(size)])

    found = {
        "broadcast": Measured(lambda: dist.broadcast(tensor, 0), tensor, lambda: values),
        "all_reduce": Measured(lambda: dist.all_reduce(tensor, "MAX"), tensor, largest),
        "all_gather": Measured(
            lambda: dist.all_gather_into_tensor(whole.view(-1), tensor), whole, all_of_them
        ),
    }
    if tensor.is_cuda:
        found |= {
            "Gloo's broadcast": Measured(
                lambda: gloo(lambda: torch_dist.broadcast(tensor, 0)), tensor, lambda: values
            ),
            "Gloo's all_reduce": Measured(
                lambda: gloo(lambda: torch_dist.all_reduce(tensor, torch_dist.ReduceOp.MAX)),
                tensor,
                largest,
            ),
            "Gloo's all_gather": Measured(
                lambda: gloo(lambda: torch_dist.all_gather(list(whole.unbind()), tensor)),
                whole,
                all_of_them,
            ),
        }
    return found


async def start_gloo(rank: int, size: int) -> None:
    """Start torch's default group, whose ranks find each other on a port that rank 0 chooses."""
    connect: Any = torch_dist.TCPStore  # type: ignore[attr-defined]  # torch's types lack it
    store = connect("127.0.0.1", 0, size, True, wait_for_workers=False) if rank == 0 else None
    port = [store and store.port]
    await dist.broadcast_object_list(port, 0)
    store = store or connect("127.0.0.1", port[0], size, False)
    torch_dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


async def main(way: str, nbytes: int, rounds: int) -> None:
    await dist.init_process_group("aiodist")
    device = choose(way)
    rank, size = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        await start_gloo(rank, size)
    values = torch.arange(nbytes // 4, dtype=torch.float32, device=device) % 1000
    tensor = torch.empty_like(values)
    copies = copies_of(tensor)
    operations = operations_on(tensor, values)
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
        for name, operation in operations.items():
            torch.add(values, rank, out=tensor)
            wait_for_the_device(device)
            await dist.barrier()
            start = time.perf_counter()
            await operation.start()
            taken[name].append(time.perf_counter() - start)
            assert torch.equal(operation.into, operation.expected()), (name, round_)
    if device == "cuda":
        torch_dist.destroy_process_group()
    await dist.destroy_process_group()
    if rank == 0:
        print("figures", json.dumps({name: each[1:] for name, each in taken.items()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
