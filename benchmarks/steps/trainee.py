"""One model in training on one rank, and the comparison of several that must have learned alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.pattern import WrongResultError
from benchmarks.peers.base import Interval, clock
from benchmarks.steps.cases import Model

_RATE = 1e-3
_LOSS_TOLERANCE = 1e-4
_WAY_TOLERANCE = 1e-2
"""Relative, of losses and of the way that the parameters have gone. Rounding is far below."""


class Trainee:
    """A model under DistributedDataParallel, with its optimizer.

    ``silent``: its gradients stay on the rank (``no_sync``), all else is the same work.
    """

    def __init__(self, name: str, model: Model, group: Any, *, silent: bool = False) -> None:
        self.name = name
        self._group = group
        self._silent = silent
        torch.manual_seed(0)  # equal on all ranks and for all trainees
        layers: list[nn.Module] = []
        for _ in range(model.layers):
            layers += [nn.Linear(model.width, model.width), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)
        self._numbers = torch.Generator().manual_seed(1 + torch.distributed.get_rank())
        self._x = torch.empty(model.rows, model.width)
        self._y = torch.empty(model.rows, model.width)
        self.losses: list[float] = []
        self._began = self.parameters()

    def step(self) -> Interval:
        """Meet the other ranks; then forward, backward and optimizer, which the time is of."""
        # New inputs each time, the same for all trainees of a rank.
        self._x.normal_(generator=self._numbers)
        self._y.normal_(generator=self._numbers)
        torch.distributed.barrier(self._group)
        start = clock()
        with self.model.no_sync() if self._silent else contextlib.nullcontext():
            self._optimizer.zero_grad()
            error = self.model(self._x) - self._y
            loss = error.square().sum() / len(error)
            loss.backward()
            self._optimizer.step()
        end = clock()
        self.losses.append(loss.item())
        return start, end

    def parameters(self) -> torch.Tensor:
        """All of them in one row."""
        with torch.no_grad():
            return torch.cat([each.flatten() for each in self.model.parameters()])

    def way(self) -> torch.Tensor:
        """How far the parameters have come from where they began."""
        return self.parameters() - self._began


def compare(trainees: Sequence[Trainee], case: object) -> None:
    """Raise WrongResultError unless all have had the same losses and learned the same.

    Backends may add the ranks' gradients in different orders, so up to rounding. Between the
    ranks of one trainee the parameters must be equal bit for bit. All ranks call it together.
    """
    rank = torch.distributed.get_rank()
    for trainee in trainees:
        mine = trainee.parameters()
        theirs = mine.clone()
        torch.distributed.broadcast(theirs, 0)
        if not torch.equal(mine, theirs):
            raise WrongResultError(
                f"{case}, {trainee.name}: ranks 0 and {rank} have other parameters"
            )
    first, *others = trainees
    for other in others:
        names = f"{case}, rank {rank}, {first.name} and {other.name}"
        for number, (one, two) in enumerate(zip(first.losses, other.losses, strict=True)):
            if not math.isclose(one, two, rel_tol=_LOSS_TOLERANCE):
                raise WrongResultError(f"{names}: the losses of step {number} are {one}, {two}")
        way = first.way()
        apart, length = (way - other.way()).norm().item(), way.norm().item()
        # Every step rounds each parameter by its own size, which may be much beside a short way.
        rounding = len(first.losses) * torch.finfo(way.dtype).eps * first.parameters().norm().item()
        if not apart < _WAY_TOLERANCE * length + rounding:  # not a number is no small one
            raise WrongResultError(
                f"{names}: the parameters are {apart / length:.2g} of their way apart "
                f"({rounding / length:.2g} of it may be rounding)"
            )
