"""Compute metrics over ranks that saw unequal numbers of values: ``torchmetrics_sync BACKEND``."""

import sys

import torch
import torch.distributed as dist
from torchmetrics import CatMetric, MeanMetric, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, MulticlassConfusionMatrix

from tests.ecosystem.programs.results import show


def main() -> None:
    dist.init_process_group(sys.argv[1])
    rank = dist.get_rank()
    torch.manual_seed(rank)
    # One rank has no value of this one.
    only_one = CatMetric()
    if rank == 1:
        only_one.update(torch.arange(3.0))
    found = [only_one.compute()]
    scores, labels = torch.rand(5 + 7 * rank), torch.randint(0, 2, (5 + 7 * rank,))
    for metric in (BinaryAUROC(), MulticlassConfusionMatrix(2), PearsonCorrCoef()):
        metric.update(scores, labels.float() if isinstance(metric, PearsonCorrCoef) else labels)
        found.append(metric.compute())
    # The states meet at each step.
    found.append(MeanMetric(dist_sync_on_step=True)(scores))
    figures = [number for value in found for number in value.double().flatten().tolist()]
    all_figures = [figures, figures]
    dist.all_gather_object(all_figures, figures)
    assert all_figures == [figures, figures]
    show(torch.nn.Identity(), *figures)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
