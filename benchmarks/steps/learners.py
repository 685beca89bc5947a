"""A model in training on one rank: alone, under DistributedDataParallel, or sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from aiodist.bench.pattern import Array
from benchmarks.steps.cases import Model


class Learner:
    """A model whose gradients stay on the rank."""

    def __init__(self, model: Model, group: Any = None) -> None:
        """Make the model, equal on all ranks and for all learners. ``group``: None is the default."""
        self.group = group
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(model.layers):
            layers += [nn.Linear(model.width, model.width), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])
        self.shape = model
        self.share = 1.0
        """What the loss is multiplied by before backward."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's answer to ``x``."""
        answer: torch.Tensor = self.net(x)
        return answer

    def quiet(self) -> AbstractContextManager[None]:
        """While it is open, gradients stay on the rank; all else is the same work."""
        return nullcontext()

    def parameters(self) -> torch.Tensor:
        """Return all parameters in one row."""
        return _row(self.net.parameters())

    def gradients(self) -> torch.Tensor:
        """Return all gradients in one row."""
        return _row(each.grad for each in self.net.parameters() if each.grad is not None)

    def own(self) -> Learner:
        """Return a learner of the same parameters, all of them on this rank."""
        return self


class DataParallel(Learner):
    """The same under DistributedDataParallel, over torch's group ``group``.

    ``total`` adds up a bucket over all ranks in place of the group's all-reduce, by the time it
    returns. What is left is the division, which DDP has for nothing while it fills a bucket: here
    the loss is that of this rank's share, so that the sum of gradients is their mean.
    """

    def __init__(
        self,
        model: Model,
        group: Any,
        *,
        total: Callable[[Array], None] | None = None,
    ) -> None:
        super().__init__(model, group)
        self.parallel = DistributedDataParallel(self.net, process_group=group)
        if total is not None:
            self.share /= torch.distributed.get_world_size()
            # A lambda: DDP compares annotations with classes, and those of this file are strings.
            self.parallel.register_comm_hook(total, lambda total, bucket: _totalled(total, bucket))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.parallel(x)
        return answer

    def quiet(self) -> AbstractContextManager[None]:
        no_sync: AbstractContextManager[None] = self.parallel.no_sync()
        return no_sync


class Sharded(Learner):
    """The same with each layer's parameters divided among the ranks, by ``fully_shard``.

    A layer's parameters are gathered before its forward and its backward; its gradients are
    averaged by a reduce_scatter.
    """

    def __init__(self, model: Model, group: Any) -> None:
        super().__init__(model, group)
        mesh = DeviceMesh.from_group(group or torch.distributed.group.WORLD, "cpu")
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def own(self) -> Learner:
        alone = Learner(self.shape)
        row, at = self.parameters(), 0
        with torch.no_grad():
            for each in alone.net.parameters():
                each.copy_(row[at : at + each.numel()].view_as(each))
                at += each.numel()
        return alone


def _row(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    with torch.no_grad():
        whole = (each.full_tensor() if isinstance(each, DTensor) else each for each in tensors)
        return torch.cat([each.flatten() for each in whole if each is not None])


def _totalled(total: Callable[[Array], None], bucket: Any) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer()
    total(tensor.numpy())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(tensor)
    return done
