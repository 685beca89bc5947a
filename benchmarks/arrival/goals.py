"""The goals for speed where jobs feel it, as data, and how a run stands to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from aiodist.bench.cases import KIB, MIB
from benchmarks.arrival.cases import BATCH, LATE, TIGHT, TRAINING, WAIT, PatternCase
from benchmarks.arrival.results import Figures, PatternReport
from benchmarks.arrival.wakeup import WakeUp

APIS = ("async", "blocking")
PERSISTENT = ("async-persistent", "blocking-persistent")
GLOO, FLOOR, OPEN_MPI = "gloo", "floor", "openmpi"
OWN_MEDIAN = "its own median"


@dataclass(frozen=True)
class PatternTarget:
    """The worst ratio over sizes and APIs: at most ``limit``.

    ``against`` is a peer, whose median counts, or `OWN_MEDIAN`. Without one, the figure itself
    counts: a share of a core in percent.
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
    figure: str = "median"
    """Which of the `Figures` is compared."""
    enough: float = 0.0
    """Microseconds at which it is met whatever the ratio."""
    apis: tuple[str, ...] = APIS

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
    PatternTarget(
        "the same, of a persistent collective",
        TRAINING,
        WakeUp.name,
        1.5,
        20e-3,
        (4, 4),
        apis=PERSISTENT,
    ),
    PatternTarget(
        "tight loop of 4 B, or at most 6 us", TIGHT, OPEN_MPI, 3.0, sizes=(4, 4), enough=6.0
    ),
    PatternTarget("tight loop of 4 B, p99", TIGHT, OWN_MEDIAN, 3.0, sizes=(4, 4), figure="p99"),
    PatternTarget("tight loop of 4 B, mean", TIGHT, OWN_MEDIAN, 1.2, sizes=(4, 4), figure="mean"),
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
    """How a run stands to a goal: a ratio, where it is the worst, and that of no library there."""

    target: PatternTarget
    worst: float
    time: float
    """Microseconds, of which ``worst`` is the ratio."""
    case: PatternCase
    peer: str
    floor: float | None

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within the limit, or the time short enough."""
        return self.worst <= self.target.limit or self.time <= self.target.enough

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
    """Yield how the run stands to each goal that it has figures for: its worst ratio.

    If no library meets the goal there either, the worst miss that is within reach follows, if any.
    """
    for target in TARGETS:
        figure = attrgetter(target.figure)
        found = [
            Standing(
                target, ratio, figure(row[peer]), case, peer, _ratio(row.get(FLOOR), row, target)
            )
            for case, row in report.rows(target.kind)
            if target.is_of(case)
            for peer in target.apis
            if (ratio := _ratio(row.get(peer), row, target)) is not None
        ]
        if not found:
            continue
        found.sort(key=lambda standing: standing.worst, reverse=True)
        yield found[0]
        if found[0].is_beyond_reach:
            yield from [each for each in found if not each.is_met and not each.is_beyond_reach][:1]


def _ratio(figures: Figures | None, row: dict[str, Figures], target: PatternTarget) -> float | None:
    if figures is None:
        return None
    measured: float = getattr(figures, target.figure)
    if not target.against:
        return measured
    against = figures if target.against == OWN_MEDIAN else row.get(target.against)
    return None if against is None else measured / against.median
