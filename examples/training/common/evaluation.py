"""Evaluation over all ranks that counts every image once."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from common.data import Batches, Samples
from common.meters import Meters, Result
from common.ranks import Ranks, agree


@torch.no_grad()
def count(model: nn.Module, batches: Batches, shown: bool = False) -> Meters:
    """Return what this rank's images add up to: how many they are, their losses, how many are right.

    ``shown``: with a progress bar if it takes more than a second.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    meters = Meters()
    bar = tqdm(batches, "evaluation", leave=False, disable=not shown, ncols=100, delay=1)
    for images, labels in bar:
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        meters.update(functional.cross_entropy(scores, labels), scores, labels)
    model.train(was_training)
    return meters


def evaluate(
    model: nn.Module, samples: Samples, ranks: Ranks, batch_size: int, workers: int = 0
) -> Result:
    """Return the result over all ``samples``: this rank takes every ``ranks.size``-th of them.

    ``model``: the module itself, not its DistributedDataParallel: that one waits for the other ranks in
    forward, and they may have a batch less. Its buffers become those of rank 0, so that all ranks
    evaluate one model. Call it on all ranks. The recipe ``evaluate.py`` says why it is exact.
    """
    for buffer in model.buffers():
        ranks.broadcast(buffer)
    part = range(ranks.rank, len(samples), ranks.size)
    batches = Batches(samples, part, batch_size, workers)
    meters = count(model, batches, shown=ranks.rank == 0)
    agree(ranks, batches.problem)
    return meters.over(ranks)
