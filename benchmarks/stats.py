"""From the samples of all ranks to one figure: how long the slowest rank's call took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Times of a call in microseconds: median, 10th and 90th percentile."""

    median: float
    p10: float
    p90: float
    repetitions: int


def summarize(times: Sequence[float]) -> Summary:
    """Of at least one time; percentiles are interpolated linearly."""
    if not times:
        raise ValueError("no times to summarize")
    p10, median, p90 = np.percentile(np.asarray(times), [10, 50, 90])
    return Summary(round(float(median), 3), round(float(p10), 3), round(float(p90), 3), len(times))
