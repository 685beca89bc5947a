"""From the samples of all ranks to one figure: how long the slowest rank's call took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Times of a call in microseconds. p10, p90 and p99 are percentiles."""

    median: float
    p10: float
    p90: float
    repetitions: int
    p99: float
    mean: float


def summarize(times: Sequence[float]) -> Summary:
    """Of at least one time; percentiles are interpolated linearly."""
    if not times:
        raise ValueError("no times to summarize")
    p10, median, p90, p99 = np.percentile(np.asarray(times), [10, 50, 90, 99])
    median, p10, p90, p99, mean = (
        round(float(figure), 3) for figure in (median, p10, p90, p99, np.mean(times))
    )
    return Summary(median, p10, p90, len(times), p99, mean)
