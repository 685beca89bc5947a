"""What is measured, as data: patterns of calls, sizes, and how much time each case gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiodist.bench.cases import KIB, MIB, Case
from aiodist.bench.measure import Effort

LATE, TRAINING, BATCH, WAIT = "late", "training", "batch", "wait"

TIMED = (LATE, TRAINING)
"""Kinds whose result is the time from the last rank in to the last rank out."""

_TURN_SECONDS = 0.04
_MOST_CALLS = 20
_FEWEST_CALLS = 4


@dataclass(frozen=True)
class Pattern:
    """How the calls of a case come.

    ``late``: one rank computes for ``seconds`` while the others call. ``training``: every rank
    computes for ``seconds`` before each call. ``batch``: ``repeats`` calls in a row, with no barrier
    between them. ``wait``: as ``late``; the processor's time of a waiting rank is the result.
    """

    kind: str
    seconds: float = 0.0
    repeats: int = 1


@dataclass(frozen=True)
class PatternCase:
    """An operation at a size, called in a pattern."""

    case: Case
    pattern: Pattern

    @classmethod
    def of(cls, fields: dict[str, Any]) -> PatternCase:
        """Return the case whose fields, as a dict, are ``fields``."""
        return cls(Case(**fields["case"]), Pattern(**fields["pattern"]))

    def __str__(self) -> str:
        pattern = self.pattern
        before = f" {pattern.seconds * 1e3:g} ms" if pattern.seconds else ""
        return f"{self.case}, {pattern.kind}{before}"


@dataclass(frozen=True)
class PatternSuite:
    """Cases, and the bounds on their repetitions."""

    name: str
    ranks: int
    operation: str
    sizes: Mapping[str, tuple[int, ...]]
    """Bytes to measure, for each kind of pattern."""
    seconds: Mapping[str, tuple[float, ...]]
    repeats: int
    budget: float
    """Seconds for the measured rounds of a case, if the fewest rounds take less."""
    fewest: int
    most: int

    def cases(self) -> Iterator[PatternCase]:
        """All cases, in the order of measuring."""
        for kind, sizes in self.sizes.items():
            repeats = self.repeats if kind == BATCH else 1
            for nbytes in sizes:
                for seconds in self.seconds.get(kind, (0.0,)):
                    pattern = Pattern(kind, seconds, repeats)
                    yield PatternCase(Case(self.operation, self.ranks, nbytes), pattern)

    def effort(self, case: PatternCase) -> Effort:
        """Return the bounds for ``case``. The calls of a turn come in a row; the first does not count."""
        if case.pattern.kind == WAIT:
            return Effort(0.0, 1, 1, calls_in_turn=1)
        calls = int(_TURN_SECONDS / (case.pattern.seconds + 1e-3))
        calls = max(_FEWEST_CALLS, min(_MOST_CALLS, calls))
        return Effort(self.budget, self.fewest, self.most, calls_in_turn=calls + 1)


_SECONDS = {LATE: (0.0, 50e-6, 500e-6, 5e-3), TRAINING: (1e-3, 5e-3, 20e-3)}

QUICK = PatternSuite(
    "quick",
    2,
    "all_reduce",
    {LATE: (4, 64 * KIB, MIB), TRAINING: (4, MIB), BATCH: (4, MIB), WAIT: (4,)},
    {**_SECONDS, WAIT: (2.0,)},
    repeats=20,
    budget=1.0,
    fewest=3,
    most=60,
)
STANDARD = PatternSuite(
    "standard",
    2,
    "all_reduce",
    {
        LATE: (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
        TRAINING: (4, 64 * KIB, MIB, 16 * MIB),
        BATCH: (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
        WAIT: (4,),
    },
    {**_SECONDS, WAIT: (10.0,)},
    repeats=20,
    budget=4.0,
    fewest=8,
    most=400,
)
