"""From the samples of all ranks to one figure: how long the slowest rank's call took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers.base import Interval


class WrongOrderError(AssertionError):
    """A rank left a barrier before another had come."""


@dataclass(frozen=True)
class Summary:
    """Times of a call in microseconds: median, 10th and 90th percentile."""

    median: float
    p10: float
    p90: float
    repetitions: int


def combine(case: Case, by_rank: Sequence[Sequence[Interval]]) -> list[float]:
    """One time in microseconds for each repetition.

    It is the slowest rank's; for send_recv it is half the round trip that rank 0 sees. Raises
    WrongOrderError if a rank left a barrier before another one entered it.
    """
    if len({len(intervals) for intervals in by_rank}) != 1:
        raise ValueError(f"{case}: the ranks have different numbers of repetitions")
    if case.operation == "send_recv":
        return [(end - start) / 2e3 for start, end in by_rank[0]]
    if case.operation == "barrier":
        for number, intervals in enumerate(zip(*by_rank, strict=True)):
            if max(start for start, _ in intervals) > min(end for _, end in intervals):
                raise WrongOrderError(
                    f"{case}, repetition {number}: a rank left before another came"
                )
    return [
        max(end - start for start, end in intervals) / 1e3
        for intervals in zip(*by_rank, strict=True)
    ]


def summarize(times: Sequence[float]) -> Summary:
    """Of at least one time; percentiles are interpolated linearly."""
    if not times:
        raise ValueError("no times to summarize")
    p10, median, p90 = np.percentile(np.asarray(times), [10, 50, 90])
    return Summary(round(float(median), 3), round(float(p10), 3), round(float(p90), 3), len(times))
