"""One model in training on one rank, and the comparison of several that must have learned alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aiodist.bench.pattern import Array, WrongResultError
from aiodist.bench.peers.measured_peer import Interval, clock
from benchmarks.steps.cases import Model

_RATE = 1e-3
_LOSS_TOLERANCE = 1e-4
"""Relative. Inputs and targets are noise, so a loss says that a model has not exploded, not more."""


class Trainee:
    """A model under DistributedDataParallel, with its optimizer.

    ``silent``: its gradients stay on the rank (``no_sync``), all else is the same work.
    ``total`` adds up a bucket over all ranks in place of the group's all-reduce, by the time it
    returns. What is left is the division, which DDP has for nothing while it fills a bucket: here
    the loss is that of this rank's share, so that the sum of gradients is their mean.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        group: Any,
        *,
        silent: bool = False,
        total: Callable[[Array], None] | None = None,
    ) -> None:
        self.name = name
        self._group = group
        self._silent = silent
        torch.manual_seed(0)  # equal on all ranks and for all trainees
        layers: list[nn.Module] = []
        for _ in range(model.layers):
            layers += [nn.Linear(model.width, model.width), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group)
        self._share = 1.0
        if total is not None:
            self._share /= torch.distributed.get_world_size()
            # A lambda: DDP compares annotations with classes, and those of this file are strings.
            self.model.register_comm_hook(total, lambda total, bucket: _totalled(total, bucket))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)
        self._numbers = torch.Generator().manual_seed(1 + torch.distributed.get_rank())
        self._x = torch.empty(model.rows, model.width)
        self._y = torch.empty(model.rows, model.width)
        self.losses: list[float] = []

    def step(self) -> Interval:
        """Meet the other ranks; then forward, backward and optimizer, which the time is of."""
        self._draw()
        torch.distributed.barrier(self._group)
        start = clock()
        loss = self._backward(silent=self._silent)
        self._optimizer.step()
        end = clock()
        self.losses.append(loss.item())
        return start, end

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """At new inputs, all gradients in one row: this rank's own, and those a step would take.

        The parameters stay as they are.
        """
        self._draw()
        rows = []
        for silent in (True, self._silent):
            self._backward(silent=silent)
            each = (one.grad for one in self.model.parameters())
            rows.append(torch.cat([grad.flatten() for grad in each if grad is not None]))
        own, taken = rows
        return own, taken

    def parameters(self) -> torch.Tensor:
        """All of them in one row."""
        with torch.no_grad():
            return torch.cat([each.flatten() for each in self.model.parameters()])

    def _draw(self) -> None:
        # New inputs each time, the same for all trainees of a rank.
        self._x.normal_(generator=self._numbers)
        self._y.normal_(generator=self._numbers)

    def _backward(self, *, silent: bool) -> torch.Tensor:
        with self.model.no_sync() if silent else contextlib.nullcontext():
            self._optimizer.zero_grad()
            error = self.model(self._x) - self._y
            loss: torch.Tensor = error.square().sum() / len(error)
            share = loss if silent or self._share == 1.0 else loss * self._share
            share.backward()
        return loss


def _totalled(total: Callable[[Array], None], bucket: Any) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer()
    total(tensor.numpy())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(tensor)
    return done


def compare(trainees: Sequence[Trainee], case: object) -> None:
    """Raise WrongResultError unless all trainees averaged their gradients up to rounding.

    The ranks of one trainee must have the same parameters, bit for bit. Two trainees must have the
    same losses, up to rounding. Each averaged gradient is compared with its mean in float64.

    Parameters of two trainees are not compared: backends add in different orders, and where the
    last bit turns a ReLU off, the next gradients differ. With 4 ranks and 25 M parameters, Gloo's
    and aiodist's gradients were 5e-8 apart in the first step and 3e-2 in the twentieth. With tanh
    in place of ReLU they were 6e-7 apart in the twelfth step. All ranks call it together.
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
    for trainee in trainees:
        _check_mean(*trainee.gradients(), f"{case}, rank {rank}, {trainee.name}")


def _check_mean(own: torch.Tensor, found: torch.Tensor, who: str) -> None:
    """Raise WrongResultError unless ``found`` is the mean of all ranks' ``own`` up to rounding."""
    ranks, info = torch.distributed.get_world_size(), torch.finfo(found.dtype)
    mean, size = own.double(), own.double().abs()
    for each in (mean, size):
        torch.distributed.all_reduce(each)
        each /= ranks
    # In any order there are ranks - 1 additions and two roundings of the division. Each is off by at
    # most half an epsilon of the partial result, which the mean of the absolute values bounds. Tiny
    # results are off by a part of the smallest number.
    bound = (ranks + 1) * (size * (info.eps / 2) + info.smallest_normal * info.eps)
    off = (found.double() - mean).abs() - bound
    wrong = ~(off <= 0)  # not a number is no small one
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise WrongResultError(
            f"{who}: {int(wrong.sum())} of {len(own)} gradients are no mean of the ranks'; number "
            f"{place} is {found[place]} and must be {mean[place]}, give or take {bound[place]:.2g}"
        )
