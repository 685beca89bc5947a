"""From the samples of all ranks to the times of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiodist.bench.cases import Case
from aiodist.bench.peers.measured_peer import Interval
from aiodist.procfs import boot_and_namespace


class WrongOrderError(AssertionError):
    """A rank left a barrier before another had come."""


def clock_name() -> str:
    """Return a text that is equal for processes whose clocks have one origin: of one boot."""
    return boot_and_namespace("time")


def combine(
    case: Case, by_rank: Sequence[Sequence[Interval]], clocks: Sequence[str] | None = None
) -> list[float]:
    """Return one time in microseconds for each repetition, from the intervals ``by_rank``.

    It is the slowest rank's; for send_recv it is half the round trip that rank 0 sees. ``clocks``: the
    `clock_name` of each rank; None if all have one clock. Raises WrongOrderError if a rank left a
    barrier before another one of the same clock entered it.
    """
    if len({len(intervals) for intervals in by_rank}) != 1:
        raise ValueError(f"{case}: the ranks have different numbers of repetitions")
    if case.operation == "send_recv":
        return [(end - start) / 2e3 for start, end in by_rank[0]]
    if case.operation == "barrier":
        names = [""] * len(by_rank) if clocks is None else clocks
        for name in dict.fromkeys(names):
            _check_order(
                case, [mine for mine, of in zip(by_rank, names, strict=True) if of == name]
            )
    return [
        max(end - start for start, end in intervals) / 1e3
        for intervals in zip(*by_rank, strict=True)
    ]


def _check_order(case: Case, by_rank: Sequence[Sequence[Interval]]) -> None:
    """Raise WrongOrderError as `combine` does, for ranks of one clock."""
    for number, intervals in enumerate(zip(*by_rank, strict=True)):
        if max(start for start, _ in intervals) > min(end for _, end in intervals):
            raise WrongOrderError(f"{case}, repetition {number}: a rank left before another came")


@dataclass(frozen=True)
class Timing:
    """Times of a call in microseconds."""

    median: float
    mean: float
    p99: float
    calls: int


def timing(times: Sequence[float]) -> Timing:
    """Summarize at least one time; percentiles are interpolated linearly."""
    array = np.asarray(times)
    median, p99 = np.percentile(array, [50, 99])
    return Timing(float(median), float(array.mean()), float(p99), len(times))
