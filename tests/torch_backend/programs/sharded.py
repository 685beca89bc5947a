"""What else of PyTorch runs over a process group: FSDP2, DTensor, ZeRO, distributed checkpoints."""

from __future__ import annotations

import copy
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn.parallel import DistributedDataParallel

from tests.torch_backend.programs.ddp import Net, batches, check_equal_replicas, own


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x, True), y)


def fsdp(rank: int, size: int) -> None:
    reference = Net()
    model = copy.deepcopy(reference)
    for layer in (model.first, model.second, model.extra, model.last):
        fully_shard(layer)
    fully_shard(model)
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    reference_steps = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(size):
        for net, optimizer, part in (
            (model, steps, (own(x, rank), own(y, rank))),
            (reference, reference_steps, (x, y)),
        ):
            optimizer.zero_grad()
            _loss(net, *part).backward()
            optimizer.step()
    for mine, whole in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.to_local().numel() < whole.numel()
        torch.testing.assert_close(mine.full_tensor(), whole, atol=1e-6, rtol=1e-4)
    if hasattr(model, "set_allocate_memory_from_process_group_for_comm"):  # newer torch
        for layer in (model.first, model.last):
            layer.set_allocate_memory_from_process_group_for_comm(True)
        torch.testing.assert_close(model(x), reference(x), atol=1e-6, rtol=1e-4)


def redistribution(rank: int, size: int) -> None:
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = torch.arange(7.0 * 5).view(7, 5)  # rows and columns that no size divides
    placements = [Shard(0), Shard(1), Replicate()]
    for source in placements:
        for target in placements:
            moved = distribute_tensor(whole, mesh, [source]).redistribute(mesh, [target])
            assert torch.equal(moved.full_tensor(), whole), (source, target)
    for target in placements:
        parts = DTensor.from_local(whole * (rank + 1), mesh, [Partial()])
        total = parts.redistribute(mesh, [target]).full_tensor()
        assert torch.equal(total, whole * sum(range(1, size + 1))), target
    left = distribute_tensor(whole, mesh, [Shard(0)])
    right = distribute_tensor(whole.T.contiguous(), mesh, [Replicate()])
    torch.testing.assert_close((left @ right).full_tensor(), whole @ whole.T)


def gathered(rank: int, size: int) -> None:
    """A sharded tensor on the CPU is gathered on one rank."""
    device = torch.get_default_device().type
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/{device}" for r in range(size)])
    sharded = sharded_tensor.empty(spec, 7, 5)
    for shard in sharded.local_shards():
        first = shard.metadata.shard_offsets[0] * 5
        shard.tensor.copy_(torch.arange(first, first + shard.tensor.numel()).view(-1, 5))
    whole = torch.zeros(7, 5) if rank == 1 else None
    sharded.gather(1, whole)
    if whole is not None:
        assert torch.equal(whole, torch.arange(35.0).view(7, 5))


def two_dimensions(rank: int, size: int) -> None:
    """Groups of a mesh of two dimensions: rows and columns."""
    mesh = init_device_mesh(
        torch.get_default_device().type, (2, size // 2), mesh_dim_names=("rows", "columns")
    )
    mine = torch.tensor([float(rank)])
    dist.all_reduce(mine, group=mesh.get_group("columns"))
    width = size // 2
    row = rank // width
    assert mine.item() == sum(range(row * width, (row + 1) * width))
    whole = torch.arange(24.0).view(4, 6)
    there = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert there.to_local().shape == (2, 6 // width)
    back = there.redistribute(mesh, [Shard(1), Shard(0)])
    assert torch.equal(back.full_tensor(), whole)


def zero(rank: int, size: int) -> None:
    """Each rank has the optimizer's state of some parameters; the model is that of one process."""
    reference = Net()
    wrapped = DistributedDataParallel(copy.deepcopy(reference))
    sharded = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    whole = torch.optim.Adam(reference.parameters(), lr=0.01)
    for x, y in batches(size):
        sharded.zero_grad()
        whole.zero_grad()
        _loss(wrapped, own(x, rank), own(y, rank)).backward()
        _loss(reference, x, y).backward()
        sharded.step()
        whole.step()
    for mine, theirs in zip(wrapped.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
    check_equal_replicas(wrapped.module, size)
    sharded.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(sharded.state_dict()["state"]) == len(list(reference.parameters()))


def checkpoints(rank: int, size: int) -> None:
    """A sharded model is saved, and loaded into shards of another layout."""
    folder = os.path.join(os.environ["TEST_FOLDER"], "checkpoint")
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = torch.arange(11.0 * 3).view(11, 3)
    saved = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 5}
    checkpoint.save(saved, checkpoint_id=folder)
    empty = distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)])
    loaded = {"weight": empty, "step": 0}
    checkpoint.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["weight"].full_tensor(), whole)
    assert loaded["step"] == 5
    writing = checkpoint.async_save(saved, checkpoint_id=folder + "-async")
    writing.result()
    checkpoint.load(loaded, checkpoint_id=folder + "-async")
