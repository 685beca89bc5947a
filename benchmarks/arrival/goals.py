"""The goals for speed where jobs feel it, as data, and how a run stands to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiodist.bench.cases import KIB, MIB
from benchmarks.arrival.cases import BATCH, LATE, TRAINING, WAIT, PatternCase
from benchmarks.arrival.results import Figures, PatternReport
from benchmarks.arrival.wakeup import WakeUp

APIS = ("async", "blocking")
GLOO, FLOOR = "gloo", "floor"


@dataclass(frozen=True)
class PatternTarget:
    """The worst ratio of medians over sizes and APIs: at most ``limit``.

    ``against`` is a peer; without one, the figure itself counts: a share of a core in percent.
    """

    words: str
    kind: str
    against: str
    limit: float
    seconds: float | None = None
    """Time before a call; None: all of the run."""
    sizes: tuple[int, int] = (0, 1 << 40)
    """The smallest and the largest."""
    operations: tuple[str, ...] = ("all_reduce",)
    """Empty: all of the run."""
    ranks: int = 2

    def is_of(self, case: PatternCase) -> bool:
        """Whether ``case`` counts."""
        call, pattern = case.case, case.pattern
        return (
            (pattern.kind, call.ranks) == (self.kind, self.ranks)
            and self.seconds in (None, pattern.seconds)
            and self.sizes[0] <= call.nbytes <= self.sizes[1]
            and (not self.operations or call.operation in self.operations)
        )


TARGETS = (
    PatternTarget("one rank late by 500 us, 4 B to 64 KiB", LATE, GLOO, 0.2, 500e-6, (4, 64 * KIB)),
    PatternTarget(
        "one rank late by 500 us, 4 B to 64 KiB", LATE, WakeUp.name, 1.5, 500e-6, (4, 64 * KIB)
    ),
    PatternTarget("one rank late by 500 us, 1 MiB", LATE, GLOO, 0.2, 500e-6, (MIB, MIB)),
    PatternTarget(
        "first call after 20 ms of computation, 4 B", TRAINING, WakeUp.name, 1.5, 20e-3, (4, 4)
    ),
    PatternTarget("a rank that waits, percent of a core", WAIT, "", 1.0),
    PatternTarget(
        "ping-pong and broadcast in a row, 2 to 32 MiB",
        BATCH,
        GLOO,
        0.35,
        sizes=(2 * MIB, 32 * MIB),
        operations=("send_recv", "broadcast"),
    ),
    PatternTarget("4 ranks in a row, every operation", BATCH, GLOO, 0.3, operations=(), ranks=4),
)


@dataclass(frozen=True)
class Standing:
    """How a run stands to a goal: its worst ratio, where, and that of no library there."""

    target: PatternTarget
    worst: float
    case: PatternCase
    peer: str
    floor: float | None

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within the limit."""
        return self.worst <= self.target.limit

    @property
    def is_beyond_reach(self) -> bool:
        """Whether no library meets the goal at this place either."""
        return not self.is_met and self.floor is not None and self.floor > self.target.limit

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or that no library meets it either."""
        if self.is_met:
            return "met"
        return "missed; out of reach here" if self.is_beyond_reach else "missed"


def standings(report: PatternReport) -> Iterator[Standing]:
    """Yield how the run stands to each goal that it has figures for."""
    for target in TARGETS:
        found = [
            Standing(target, ratio, case, peer, _ratio(row.get(FLOOR), row, target))
            for case, row in report.rows(target.kind)
            if target.is_of(case)
            for peer in APIS
            if (ratio := _ratio(row.get(peer), row, target)) is not None
        ]
        # A miss that no library shares counts before a worse one that it does.
        own = [each for each in found if not each.is_met and not each.is_beyond_reach]
        if found:
            yield max(own or found, key=lambda standing: standing.worst)


def _ratio(figures: Figures | None, row: dict[str, Figures], target: PatternTarget) -> float | None:
    if figures is None or not target.against:
        return None if figures is None else figures.median
    against = row.get(target.against)
    return None if against is None else figures.median / against.median
