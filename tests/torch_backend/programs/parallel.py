"""Other ways to train over several ranks that PyTorch has: stages, parts of layers, both at once."""

from __future__ import annotations

import copy

import torch
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def pipeline(rank: int, size: int) -> None:
    """Each rank has a layer; activations and their gradients travel in parts of the batch."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(size)])
    x, y, parts = torch.randn(8, 8), torch.randn(8, 8), 4
    whole = nn.Sequential(*copy.deepcopy(layers))
    for several in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (nn.functional.mse_loss(whole(several[0]), several[1]) / parts).backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        mine = copy.deepcopy(layers[rank])
        stage = PipelineStage(mine, rank, size, torch.get_default_device())
        steps = schedule(stage, n_microbatches=parts, loss_fn=nn.functional.mse_loss)
        if rank == 0:
            steps.step(x)
        elif rank == size - 1:
            steps.step(target=y)
        else:
            steps.step()
        torch.testing.assert_close(mine.weight.grad, whole[rank].weight.grad)


def _two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))


def tensor_parallel(rank: int, size: int) -> None:
    """Columns of one layer and rows of the next are on different ranks."""
    reference = _two_layers()
    model = copy.deepcopy(reference)
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(5, 6)
    torch.testing.assert_close(model(x), reference(x))
    model(x).sum().backward()
    reference(x).sum().backward()
    for mine, whole in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), whole.grad)


def sharded_replicas(rank: int, size: int) -> None:
    """Shards within a row of the mesh, equal ones in its columns."""
    reference = _two_layers()
    model = copy.deepcopy(reference)
    mesh = init_device_mesh(
        torch.get_default_device().type, (2, size // 2), mesh_dim_names=("replicas", "shards")
    )
    fully_shard(model, mesh=mesh)
    x = torch.randn(size, 6)
    model(x[rank : rank + 1]).sum().backward()
    reference(x).sum().div(size).backward()
    for mine, whole in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), whole.grad)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def autograd(rank: int, size: int) -> None:
    """Collectives that have a gradient."""
    x = torch.full((2,), rank + 1.0, requires_grad=True)

    def gradient(y: torch.Tensor) -> list[float]:
        (found,) = torch.autograd.grad(y.sum(), x)
        return found.tolist()

    total = float(sum(range(1, size + 1)))
    assert gradient(differentiable.all_reduce(2 * x)) == [2.0 * size] * 2
    gathered = sum(differentiable.all_gather(1 * x))
    assert gradient(gathered * (rank + 1)) == [total] * 2
    parts = [x * (other + 1) for other in range(size)]
    assert gradient(differentiable.reduce_scatter(torch.empty(2), parts)) == [total] * 2
    sent = x.sum() * torch.ones(size)
    got = differentiable.all_to_all_single(torch.empty(size), sent)
    assert got.tolist() == [2.0 * (other + 1) for other in range(size)]
    assert gradient(got * (rank + 1)) == [total] * 2
    broadcast = differentiable.broadcast(1 * x, 0)
    assert broadcast.tolist() == [1.0, 1.0]
    assert gradient(broadcast) == [float(size) if rank == 0 else 0.0] * 2
