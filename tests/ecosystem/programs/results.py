"""What the programs print, for the test to compare."""

from typing import Any

import torch
import torch.distributed as dist


def figures(model: torch.nn.Module, *more: float) -> list[Any]:
    """Return whose the group is, the sum of the model's parameters, and ``more``."""
    total = sum(weights.detach().double().sum().item() for weights in model.parameters())
    # The name alone would not say: a group in place of Gloo has Gloo's.
    name = "aiodist" if "aiodist" in dist.get_backend_config() else dist.get_backend()
    return [name, total, *more]


def show(model: torch.nn.Module, *more: float) -> None:
    """Print `figures` on rank 0."""
    if dist.get_rank() == 0:
        print("result", *figures(model, *more), flush=True)


def train() -> list[Any]:
    """Train a small model by DDP over torch's default group; its `figures`."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        steps.zero_grad()
        model(torch.full((3, 4), float(dist.get_rank() + step))).square().sum().backward()
        steps.step()
    return figures(model)
