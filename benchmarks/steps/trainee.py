"""One model in training on one rank, and the comparison of several that must have learned alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch

from aiodist.bench.pattern import WrongResultError
from aiodist.bench.peers.measured_peer import Interval, clock
from benchmarks.steps.learners import Learner

_RATE = 1e-3
_LOSS_TOLERANCE = 1e-4
"""Relative. Inputs and targets are noise, so a loss says that a model has not exploded, not more."""


class Trainee:
    """A learner with its optimizer. ``silent``: its gradients stay on the rank."""

    def __init__(self, name: str, learner: Learner, *, silent: bool = False) -> None:
        self.name = name
        self.learner = learner
        self._silent = silent
        self._optimizer = torch.optim.SGD(learner.net.parameters(), lr=_RATE)
        self._numbers = torch.Generator().manual_seed(1 + torch.distributed.get_rank())
        self._x = torch.empty(learner.shape.rows, learner.shape.width)
        self._y = torch.empty(learner.shape.rows, learner.shape.width)
        self.losses: list[float] = []

    def step(self) -> Interval:
        """Meet the other ranks; then forward, backward and optimizer, which the time is of."""
        self._draw()
        torch.distributed.barrier(self.learner.group)
        start = clock()
        loss = self._backward(self.learner, silent=self._silent)
        self._optimizer.step()
        end = clock()
        self.losses.append(loss.item())
        return start, end

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """At new inputs, all gradients in one row: this rank's own, and those a step would take.

        The parameters stay as they are.
        """
        self._draw()
        own = self.learner.own()
        self._backward(own, silent=True)
        mine = own.gradients()
        self._backward(self.learner, silent=self._silent)
        return mine, self.learner.gradients()

    def _draw(self) -> None:
        # New inputs each time, the same for all trainees of a rank.
        self._x.normal_(generator=self._numbers)
        self._y.normal_(generator=self._numbers)

    def _backward(self, learner: Learner, *, silent: bool) -> torch.Tensor:
        with learner.quiet() if silent else contextlib.nullcontext():
            learner.net.zero_grad()
            error = learner(self._x) - self._y
            loss: torch.Tensor = error.square().sum() / len(error)
            share = loss if silent or learner.share == 1.0 else loss * learner.share
            share.backward()
        return loss


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
        mine = trainee.learner.parameters()
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
