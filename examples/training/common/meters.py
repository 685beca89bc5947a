"""Loss, top-1, top-5 and images per second: sums of one rank that add up to those of the job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from common.data import Batches
from common.ranks import Ranks, agree


@dataclass(frozen=True)
class Result:
    """Means over images: each image weighs the same, whichever rank and batch it was in."""

    images: int
    loss: float
    top1: float
    """Per cent of the images whose class has the highest score."""
    top5: float
    """Per cent of the images whose class is among the five highest scores."""
    images_per_second: float
    """The images of all ranks, each second."""

    @classmethod
    def of(cls, sums: Tensor) -> Result:
        """``sums``: `Meters.sums`, added up over the ranks."""
        images, loss, top1, top5, seconds, ranks = sums.tolist()
        count = max(images, 1)
        # Images over mean seconds is the mean of the ranks' rates, each weighed by its seconds.
        rate = images / max(seconds / ranks, 1e-9)
        return cls(int(images), loss / count, 100 * top1 / count, 100 * top5 / count, rate)

    def __str__(self) -> str:
        accuracy = f"top-1 {self.top1:.2f}, top-5 {self.top5:.2f}"
        return f"loss {self.loss:.3f}, {accuracy}, {self.images_per_second:.0f}/s"


class Meters:
    """Adds up what this rank's batches give. The clock runs from the start to the last update."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._sums = torch.zeros(4, dtype=torch.float64)
        self._seconds = 0.0

    def update(self, loss: Tensor, scores: Tensor, labels: Tensor) -> None:
        """Count a batch: its mean loss, the scores (N, classes) and the classes (N,)."""
        best = scores.detach().topk(min(5, scores.shape[1]), 1).indices == labels[:, None]
        count = len(labels)
        self._sums += torch.tensor(
            [count, loss.item() * count, best[:, 0].sum().item(), best.any(1).sum().item()],
            dtype=torch.float64,
        )
        self._seconds = time.perf_counter() - self._started

    def sums(self) -> Tensor:
        """Return images, loss, top-1, top-5, seconds, 1: (6,) float64. The ranks' sums may be added."""
        rest = torch.tensor([self._seconds, 1], dtype=torch.float64)
        return torch.cat([self._sums, rest])

    def over(self, ranks: Ranks) -> Result:
        """Return the result of all ranks' images. Call it on all ranks."""
        return Result.of(ranks.sum(self.sums()))


def progress(
    batches: Batches, meters: Meters, ranks: Ranks, title: str, every: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches; rank 0 has a bar with what the meters of all ranks say.

    Every ``every`` batches and after the last one the ranks add up their meters, and all end if one has
    met a broken image. So all ranks need the same number of batches, as DistributedSampler gives them.
    """
    with tqdm(batches, title, disable=ranks.rank != 0, ncols=100, mininterval=0.5) as bar:
        for number, batch in enumerate(bar, 1):
            yield batch
            if number % every == 0 or number == len(batches):
                agree(ranks, batches.problem)
                bar.set_postfix_str(str(meters.over(ranks)), refresh=number == len(batches))
