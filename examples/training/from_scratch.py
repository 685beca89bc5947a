"""Distributed training from scratch: what DistributedDataParallel does for you, in a page.

    aiodist run -n 4 examples/training/from_scratch.py [--own-ring]

This is the program of PyTorch's tutorial "Writing Distributed Applications with PyTorch": each rank
takes its part of the data, computes gradients, and the ranks average them. The tutorial's last part is
an all_reduce of your own, made of messages around a ring: here `ring_all_reduce`. With ``import
torch.distributed as dist`` the script runs over Gloo (or, as it is, by ``--dist-backend torch:gloo``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

import aiodist.sync as dist
import common


class Partition:
    """A part of a dataset: the samples with the numbers ``indices``."""

    def __init__(self, samples: Sequence, indices: Sequence[int]) -> None:
        self.samples = samples
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> tuple[Tensor, int, str]:
        return self.samples[self.indices[number]]


class DataPartitioner:
    """Splits a dataset into parts that have no sample in common."""

    def __init__(self, samples: Sequence, fractions: Sequence[float], seed: int) -> None:
        """``fractions``: the size of each part. Ranks with other seeds would have parts that overlap."""
        order = list(range(len(samples)))
        Random(seed).shuffle(order)
        self.samples = samples
        self.parts: list[list[int]] = []
        for fraction in fractions:
            size = int(fraction * len(samples))
            self.parts.append(order[:size])
            order = order[size:]

    def use(self, part: int) -> Partition:
        """Return part number ``part``."""
        return Partition(self.samples, self.parts[part])


def partition_dataset(samples: Sequence, ranks: common.Ranks, seed: int) -> Partition:
    """Return this rank's part. All parts have equally many samples, so ranks take as many steps."""
    return DataPartitioner(samples, [1 / ranks.size] * ranks.size, seed).use(ranks.rank)


def ring_all_reduce(tensor: Tensor) -> None:
    """Replace ``tensor`` (contiguous) by its sum over the ranks. Each rank sends to its right alone.

    Each rank cuts its tensor into n chunks, one for each rank. In the first round chunks go around and
    each rank adds its own, until every rank has the full sum of one chunk. In the second round the
    sums go around. A rank sends 2 (n - 1) / n of its bytes, so hardly more with more ranks.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.view(-1).tensor_split(size)
    arriving = torch.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank - step) % size], right)
        sum_so_far = chunks[(rank - step - 1) % size]
        dist.recv(arriving[: len(sum_so_far)], left)
        sum_so_far += arriving[: len(sum_so_far)]
        sending.wait()  # before the chunk may change
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank + 1 - step) % size], right)
        dist.recv(chunks[(rank - step) % size], left)
        sending.wait()


def average_gradients(model: nn.Module, all_reduce: Callable, traffic: common.Traffic) -> None:
    """Replace every gradient by its mean over the ranks. One long message is quicker than many."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with traffic.timed(flat.nbytes):
        all_reduce(flat)
    flat /= dist.get_world_size()
    means = flat.split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def run(options: argparse.Namespace, ranks: common.Ranks) -> None:
    """Do the job of one rank."""
    all_reduce = ring_all_reduce if options.own_ring else dist.all_reduce
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        batch_size = common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)  # the same first parameters on all ranks
        model = common.build_model(options.arch, data)
    part = partition_dataset(data.train, ranks, options.seed)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    checkpoint = common.Checkpoint(
        options, ranks, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    traffic = common.Traffic()
    trained = result = None
    for epoch in range(checkpoint.resume(), 0 if options.evaluate else options.epochs):
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(epoch))
        batches = common.Batches(part, order.tolist(), batch_size, options.workers)
        meters = common.Meters()
        title = f"epoch {epoch + 1}/{options.epochs}"
        for images, labels in common.progress(batches, meters, ranks, title, options.print_freq):
            scores = model(images)
            loss = functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model, all_reduce, traffic)
            optimizer.step()
            meters.update(loss, scores, labels)
        schedule.step()
        trained = meters.over(ranks)
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--own-ring", action="store_true", help="use the all_reduce of this file")
    options = parser.parse_args()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist)
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
