"""Train with stock DistributedDataParallel over aiodist: the backend's name is all that changes.

    aiodist run -n 2 examples/training/distributed.py
    python -m aiodist.launch --nproc_per_node=2 examples/training/distributed.py
    torchrun --nproc-per-node 2 examples/training/distributed.py

Each rank has a copy of the model and takes its part of every batch. During backward
DistributedDataParallel averages the gradients over the ranks, so the copies stay equal bit for bit.
The same script runs over Gloo with ``--dist-backend gloo``.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import common


def train_epoch(
    model: nn.Module,
    batches: common.Batches,
    optimizer: torch.optim.Optimizer,
    ranks: common.Ranks,
    title: str,
    every: int,
) -> common.Result:
    """Train on each batch once and return what all ranks' batches gave."""
    device = next(model.parameters()).device
    meters = common.Meters()
    for images, labels in common.progress(batches, meters, ranks, title, every):
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()  # the gradients travel meanwhile
        optimizer.step()
        meters.update(loss, scores, labels)
    return meters.over(ranks)


def run(options: argparse.Namespace, ranks: common.Ranks, device: torch.device) -> None:
    """Do the job of one rank."""
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        batch_size = common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)
        model = common.build_model(options.arch, data).to(device)

    # A rank's sampler gives it its part of an order that all ranks know: a new one in each epoch.
    sampler = DistributedSampler(data.train, ranks.size, ranks.rank, seed=options.seed)
    batches = common.Batches(data.train, sampler, batch_size, options.workers)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    checkpoint = common.Checkpoint(
        options, ranks, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    torch.manual_seed(options.seed + ranks.rank)  # augmentation differs between ranks
    start = checkpoint.resume()

    # On construction the copies become rank 0's. The hook is the one that DDP has anyway, with a clock.
    replica = DistributedDataParallel(model)
    common.settle_buckets(replica, data)  # so that a resumed run has the same bits
    traffic = common.Traffic()
    replica.register_comm_hook(None, traffic.measured())

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)
        title = f"epoch {epoch + 1}/{options.epochs}"
        trained = train_epoch(replica, batches, optimizer, ranks, title, options.print_freq)
        schedule.step()
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    options = common.add_rank_options(common.training_options(__doc__)).parse_args()
    device = common.pick_device()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist, device)
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
