"""Evaluate over several ranks exactly: every image counts once, at any number of ranks.

    aiodist run -n 3 examples/training/evaluate.py --resume model_best.pth.tar

Often one sees DistributedSampler here, and the mean of the ranks' accuracies. Both are wrong where the
number of ranks does not divide the number of images:

- the sampler gives all ranks equally many images. To do so it repeats some from the beginning, and these
  count twice. (With ``drop_last`` it leaves some out instead.) To train that is right: ranks have to take
  equally many steps. To evaluate it is not: no rank waits for another one before the end.
- a mean of means weighs each rank, or each batch, the same. A last batch of 3 images then counts as much as
  one of 128.

So here rank r of n takes the images r, r + n, r + 2n ... without padding. Ranks add up *how many* were
right and *how many* there were, and divide once, at the end. Counts are integers, so the result is equal
to that of one process to the last image. ``--compare`` shows what the other way would have said.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data.distributed import DistributedSampler

import common


def evaluate(
    model: nn.Module, data: common.Data, ranks: common.Ranks, options: argparse.Namespace
) -> common.Result:
    """Return the exact result over all images that are held out."""
    part = range(ranks.rank, len(data.validation), ranks.size)  # one more here, one less there
    batch_size = common.rank_batch_size(options, ranks)
    batches = common.Batches(data.validation, part, batch_size, options.workers)
    # How many images this rank has and how many of them are right, not their means.
    meters = common.count(model, batches, shown=ranks.rank == 0)
    common.agree(ranks, batches.problem)  # an image that cannot be read ends all ranks
    total = meters.sums()
    dist.all_reduce(total)
    return common.Result.of(total)  # divides once, by the number of all images


def evaluate_alone(
    model: nn.Module, data: common.Data, options: argparse.Namespace
) -> common.Result:
    """Return what one process finds that evaluates everything."""
    everything = range(len(data.validation))
    batches = common.Batches(data.validation, everything, options.batch_size, options.workers)
    return common.count(model, batches).over(common.OneProcess())


def mean_of_means(
    model: nn.Module, data: common.Data, ranks: common.Ranks, options: argparse.Namespace
) -> tuple[float, int]:
    """Return the accuracy (per cent) as it is often computed, and how many images that has counted."""
    sampler = DistributedSampler(data.validation, ranks.size, ranks.rank, shuffle=False)  # pads
    batches = common.Batches(data.validation, sampler, options.batch_size, options.workers)
    means = ranks.gather(common.count(model, batches).over(common.OneProcess()).top1)
    return sum(means) / len(means), sampler.total_size


def run(options: argparse.Namespace, ranks: common.Ranks, device: torch.device) -> None:
    """Do the job of one rank."""
    options.evaluate = True  # a checkpoint of any number of ranks will do
    with common.agreement(ranks):
        if options.resume is None:
            raise common.BadInput("--resume FILE is needed: the checkpoint to evaluate")
        data = common.load_data(options)
        common.rank_batch_size(options, ranks)
        model = common.build_model(options.arch, data).to(device)
    common.Checkpoint(options, ranks, state_dict=model).resume()
    exact = evaluate(model, data, ranks, options)
    if options.compare:
        padded, counted = mean_of_means(model, data, ranks, options)
        if ranks.rank == 0:
            alone = evaluate_alone(model, data, options)
            print(f"exact          {exact.top1:.4f} % of {exact.images} images")
            print(f"one process    {alone.top1:.4f} % of {alone.images} images")
            print(f"mean of means  {padded:.4f} % of {counted} images, some of them twice")
    common.finish(options, ranks, model, None, exact)


def main() -> None:
    """Read the options, meet the other ranks, evaluate."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--compare", action="store_true", help="with other ways")
    options = parser.parse_args()
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
