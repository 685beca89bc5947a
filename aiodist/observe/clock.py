"""One clock for all ranks: the offset of each rank's clock from rank 0's, and its error.

Ranks under one kernel share CLOCK_MONOTONIC, and need no estimate. Between hosts a rank asks rank 0
for its time in several rounds and takes the quickest (F. Cristian, Probabilistic clock
synchronization, 1989; NTP's clock filter does the same). Rank 0 read its clock at some moment
between question and answer. The middle of the two is therefore wrong by at most half the round
trip, whichever direction is slower. A line joins two estimates, at the start and at the end,
because quartzes drift (tens of microseconds a second).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from time import monotonic_ns

from aiodist.observe.rank_report import ClockSample, RankReport

ROUNDS = 8


def estimate(
    ask: Callable[[], int], clock: Callable[[], int] = monotonic_ns, rounds: int = ROUNDS
) -> ClockSample:
    """Estimate the other clock in ``rounds`` questions; ``ask()`` returns its time in nanoseconds."""

    def sample() -> ClockSample:
        before = clock()
        theirs = ask()
        after = clock()
        middle = (before + after) // 2
        return ClockSample(middle, theirs - middle, (after - before + 1) // 2)

    return min((sample() for _ in range(rounds)), key=lambda sample: sample.error)


@dataclass(frozen=True)
class Alignment:
    """The mapping from one rank's clock to rank 0's. ``error``: at most, in ns; None if unknown."""

    samples: tuple[ClockSample, ...]
    error: int | None

    def common(self, clock: int) -> int:
        """Return the time of rank 0's clock, in ns, at time ``clock`` of this rank's."""
        if not self.samples:
            return clock
        first, last = self.samples[0], self.samples[-1]
        share = max(0.0, _share(first, last, clock))
        return clock + first.offset + round(share * (last.offset - first.offset))


def _share(first: ClockSample, last: ClockSample, clock: int) -> float:
    """Return 0.0 at the first estimate, 1.0 at the last, and more after it."""
    span = last.clock - first.clock
    return (clock - first.clock) / span if span else 0.0


def align(parts: Mapping[int, RankReport]) -> dict[int, Alignment]:
    """Return the mapping of each report's times to one clock.

    A report without an estimate is aligned by its host's calendar clock, as that is set.
    """
    if not parts:
        return {}
    reference = min(parts.values(), key=lambda part: (not part.samples, part.rank))
    return {rank: _aligned(part, reference) for rank, part in parts.items()}


def _aligned(part: RankReport, reference: RankReport) -> Alignment:
    if part.samples or part is reference:
        return _by_estimates(part)
    known = _by_estimates(reference)
    if part.identity.host_id == reference.identity.host_id:
        return known
    now = known.common(reference.clock) + round((part.wall - reference.wall) * 1e9)
    return Alignment((ClockSample(part.clock, now - part.clock, 0),), None)


def _by_estimates(part: RankReport) -> Alignment:
    """Align by two estimates. After the last one the line continues, and so does the error of its slope."""
    if not part.samples:
        return Alignment((), 0)
    first, last = part.samples[0], part.samples[-1]
    beyond = max(0.0, _share(first, last, part.clock) - 1)
    end = last.error + ceil(beyond * (first.error + last.error))
    return Alignment((first, last), max(first.error, end))
