"""What the ranks of the engines' tests do."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import torch

import aiodist as adist
import aiodist.sync as dist
from aiodist.rank_processes import RanksError

STEPS = 8


def train() -> tuple[int, list[float]]:
    """Train a small model on this rank's part of the data; return the rank and the weights."""
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inputs = torch.arange(64.0).reshape(16, 4)[rank::size] / 64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    dist.destroy_process_group()
    return rank, weights.tolist()


async def add(value: int) -> tuple[int, float]:
    """Return this rank, and ``value`` summed over all ranks by the async API."""
    await adist.init_process_group()
    total = np.full(2, float(value))
    await adist.all_reduce(total)
    rank = adist.get_rank()
    await adist.destroy_process_group()
    return rank, float(total[0])


def raise_on(culprit: int) -> None:
    """Raise on one rank, while the others wait for it."""
    dist.init_process_group()
    if dist.get_rank() == culprit:
        raise KeyError("of the test")
    dist.barrier()


def die_on(culprit: int) -> None:
    """Kill one rank's process, while the others wait for it."""
    dist.init_process_group()
    if dist.get_rank() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def survive(culprit: int) -> tuple[int, int, list[float]]:
    """Count on all ranks; one is killed on the way and replaced. Return its restarts and all counts."""
    if dist.is_replacement():
        dist.rejoin()
    else:
        dist.init_process_group()
    count = torch.zeros(1)
    if dist.is_replacement():
        dist.sync_state({"count": count})
    while count[0] < STEPS:
        if count[0] == 3 and dist.get_rank() == culprit and not dist.is_replacement():
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            one = torch.ones(1)
            dist.all_reduce(one)
        except dist.PeerLostError as error:
            dist.grow(ranks=[error.rank])  # waits for the one that Ray starts in its place
            dist.sync_state({"count": count})
            continue
        count += 1
    counts: list[Any] = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    rank, restarts = dist.get_rank(), dist.get_restart_count()
    dist.destroy_process_group()
    return rank, restarts, [float(each) for each in counts]


def sum_blocks(blocks: list[np.ndarray]) -> tuple[int, float]:
    """Return how many blocks this rank has, and the sum over the blocks of all ranks."""
    dist.init_process_group()
    total = np.array([float(sum(block.sum() for block in blocks))])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return len(blocks), float(total[0])


class Unsendable:
    """An object that does not pickle."""

    def __reduce__(self) -> Any:
        raise TypeError("it does not pickle")


def return_unsendable(culprit: int) -> Unsendable | None:
    """Return, on one rank, what cannot travel to the caller."""
    dist.init_process_group()
    rank = dist.get_rank()
    dist.destroy_process_group()
    return Unsendable() if rank == culprit else None


def fail_without_meeting(culprit: int) -> None:
    """Raise on one rank before the ranks meet; the others return at once."""
    if os.environ["RANK"] == str(culprit):
        raise KeyError("of the test")


def call_from_rank_0() -> tuple[int, str, float]:
    """Start ranks on the workers of this job. Return the error, and a sum over all ranks after it."""
    import distributed

    from aiodist.integrations import dask

    dist.init_process_group()
    error = ""
    if dist.get_rank() == 0:
        with distributed.worker_client() as client:
            try:
                dask.run(client, add, 1)
            except RanksError as caught:
                error = "\n".join(sorted(map(str, caught.exceptions)))
    total = np.ones(1)
    dist.all_reduce(total)
    return dist.get_rank(), error, float(total[0])


def _refuse() -> None:
    raise RuntimeError("it does not unpickle")


class UnloadableError(Exception):
    """An error that pickles and does not unpickle."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def raise_unloadable(culprit: int) -> None:
    """Raise, on one rank, what the caller cannot unpickle."""
    dist.init_process_group()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == culprit:
        raise UnloadableError
