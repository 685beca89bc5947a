"""Train on every pod of a job, and go on from the last checkpoint after a restart.

The manifests beside this file run it: `indexed-job.yaml` and `jobset.yaml`. Rank 0 saves a checkpoint
after each epoch in CHECKPOINTS and reads it at the start; the other ranks get it from rank 0. All
replicas are the same bits as without the interruption.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import aiodist.sync as dist

IMAGES = 512


def main() -> None:
    """Train, from the beginning or from the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fail-in", type=int, help="rank 1 fails once, in this epoch")
    options = parser.parse_args()
    checkpoint = Path(os.environ.get("CHECKPOINTS", ".")) / "checkpoint.pt"
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(IMAGES, 32)
    labels = inputs @ torch.randn(32, 1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 0}
    if rank == 0 and checkpoint.exists():
        state = torch.load(checkpoint)
    state = dist.broadcast_object(state if rank == 0 else None, src=0, allow_pickle=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"]
    if rank == 0:
        print(f"{size} ranks, from epoch {first}", flush=True)
    for epoch in range(first, options.epochs):
        if rank == 1 and epoch == options.fail_in and first == 0:
            raise SystemExit(f"rank 1 fails in epoch {epoch}, as --fail-in says")
        loss = train_epoch(model, optimizer, inputs[rank::size], labels[rank::size])
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.5f}", flush=True)
            saved = checkpoint.with_suffix(".new")
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(parts | {"epoch": epoch + 1}, saved)
            saved.rename(checkpoint)
    dist.destroy_process_group()


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> float:
    """Do one step on this rank's images; return the loss over all ranks."""
    optimizer.zero_grad()
    loss = (model(inputs) - labels).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    total = loss.detach().reshape(1)
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return float(total)


if __name__ == "__main__":
    main()
