"""Train in one process with nn.DataParallel: the baseline of the other recipes.

    python examples/training/dataparallel.py

DataParallel splits each batch over the GPUs of one process, copies the model to them in every step and adds
up their gradients. Without a GPU it is the model itself. One Python process drives all GPUs, so the
recipes with a process a GPU are faster; here nothing has to be started and no rank has to be met.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data.distributed import DistributedSampler

import common


def train_epoch(
    model: nn.Module,
    batches: common.Batches,
    optimizer: torch.optim.Optimizer,
    title: str,
    every: int,
) -> common.Result:
    """Train on each batch once and return what the batches gave."""
    device = next(model.parameters()).device
    meters = common.Meters()
    for images, labels in common.progress(batches, meters, common.OneProcess(), title, every):
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters.update(loss, scores, labels)
    return meters.over(common.OneProcess())


def run(options: argparse.Namespace) -> None:
    """Train, evaluate after each epoch, and keep the best model."""
    alone = common.OneProcess()
    with common.agreement(alone):  # bad input ends the recipe with one sentence
        data = common.load_data(options)
        torch.manual_seed(options.seed)
        model = common.build_model(options.arch, data).to(common.pick_device())

    # The sampler of one rank out of one: the images come in the order that the other recipes have.
    sampler = DistributedSampler(data.train, alone.size, alone.rank, seed=options.seed)
    batches = common.Batches(data.train, sampler, options.batch_size, options.workers)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    checkpoint = common.Checkpoint(
        options, alone, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    start = checkpoint.resume()

    # The checkpoint has the model without the wrapper, so that every recipe can read it.
    parallel = nn.DataParallel(model)
    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)  # a new order in each epoch
        title = f"epoch {epoch + 1}/{options.epochs}"
        trained = train_epoch(parallel, batches, optimizer, title, options.print_freq)
        schedule.step()
        result = common.evaluate(model, data.validation, alone, options.batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(
        model, data.validation, alone, options.batch_size, options.workers
    )
    common.finish(options, alone, model, trained, result)


def main() -> None:
    """Read the options and train."""
    options = common.training_options(__doc__).parse_args()
    with common.sampled_to(options.statistics):
        run(options)


if __name__ == "__main__":
    main()
