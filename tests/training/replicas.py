"""One training, by one process with the whole batch, which every way over ranks has to equal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from tests.torch_backend.programs.ddp import Net, batches, own

LIMIT = 2048
"""Bytes of a bucket: Net then has several."""

Used = Callable[[int], bool]
"""Whether a step uses the layer ``extra``."""


_SEEDING = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generator begins at ``seed``. It is one for all threads, and ranks may be threads."""
    with _SEEDING, torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def fresh(seed: int = 0) -> Net:
    """A network, the same for each seed."""
    with seeded(seed):
        return Net()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """One with a memory, so that a gradient of None is not one of zero."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def loss_of(model: Net, part: tuple[torch.Tensor, torch.Tensor], extra: bool) -> torch.Tensor:
    x, y = part
    return nn.functional.mse_loss(model(x, extra), y)


def parts(rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rank ``rank``'s rows of each step's batch."""
    return [(own(x, rank), own(y, rank)) for x, y in batches(size)]


def by_one_process(size: int, used: Used) -> Net:
    """What training on the whole batches of ``size`` ranks leads to."""
    model = fresh()
    optimizer = optimizer_of(model)
    for step, batch in enumerate(batches(size)):
        optimizer.zero_grad()
        loss_of(model, batch, used(step)).backward()
        optimizer.step()
    return model


def check(models: Sequence[nn.Module], expected: nn.Module, atol: float = 1e-6) -> None:
    """All equal, bit for bit, and ``expected`` up to rounding."""
    for model in models:
        pairs = zip(model.parameters(), models[0].parameters(), expected.parameters(), strict=True)
        for mine, first, alone in pairs:
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, alone, atol=atol, rtol=1e-4)
