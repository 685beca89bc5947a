"""What is measured, as data: patterns of calls, sizes, and how much time each case gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiodist.bench.cases import KIB, MIB, Case
from aiodist.bench.measure import Repetitions

LATE, TRAINING, BATCH, TIGHT, WAIT = "late", "training", "batch", "tight", "wait"

KINDS = (LATE, TRAINING, WAIT, BATCH, TIGHT)
TIMED = (LATE, TRAINING)
"""Kinds whose result is the time from the last rank in to the last rank out."""

_TURN_SECONDS = 0.04
_MOST_CALLS = 20
_FEWEST_CALLS = 4
_FEWEST_REPEATS = 4
_TIGHT_REPEATS = 110
"""A sum of two ranks doubles in each of them, and float32 ends at the 128th power of two."""
WARM_CALLS = 10
"""Calls of a row that warm up: a row comes after another library's, and the patterns above have such
calls."""
_BATCH_BYTES = 16 << 20
"""About so many bytes go through the calls of a batch."""


@dataclass(frozen=True)
class Pattern:
    """How the calls of a case come.

    ``late``: one rank computes for ``seconds`` while the others call. ``training``: every rank
    computes for ``seconds`` before each call. ``batch``: ``repeats`` calls in a row, with no barrier
    between them, of which the mean counts. ``tight``: as ``batch``, and each call behind the first
    `WARM_CALLS` counts by itself. ``wait``: as ``late``; the processor's time of a waiting rank is
    the result.
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
class Block:
    """An operation on so many ranks, called in one kind of pattern, at some sizes."""

    kind: str
    sizes: tuple[int, ...]
    operation: str = "all_reduce"
    ranks: int = 2


@dataclass(frozen=True)
class PatternSuite:
    """Cases, and the bounds on their repetitions."""

    name: str
    blocks: tuple[Block, ...]
    """In the order of measuring; those of equal ranks share their processes if they are neighbours."""
    seconds: Mapping[str, tuple[float, ...]]
    """Times before a call, for each kind of pattern."""
    repeats: int
    """Calls of a batch, fewer where they are long."""
    budget: float
    """Seconds for the measured rounds of a case, if the fewest rounds take less."""
    fewest: int
    most: int

    def cases(self) -> Iterator[PatternCase]:
        """All cases, in the order of measuring."""
        for block in self.blocks:
            for nbytes in block.sizes:
                repeats = 1
                if block.kind == BATCH:
                    repeats = min(self.repeats, max(_FEWEST_REPEATS, _BATCH_BYTES // nbytes))
                elif block.kind == TIGHT:
                    repeats = _TIGHT_REPEATS
                for seconds in self.seconds.get(block.kind, (0.0,)):
                    pattern = Pattern(block.kind, seconds, repeats)
                    yield PatternCase(Case(block.operation, block.ranks, nbytes), pattern)

    def effort(self, case: PatternCase) -> Repetitions:
        """Return the bounds for ``case``. The calls of a turn come in a row; the first does not count."""
        if case.pattern.kind == WAIT:
            return Repetitions(0.0, 1, 1, calls_in_turn=1)
        calls = int(_TURN_SECONDS / (case.pattern.seconds + 1e-3))
        calls = max(_FEWEST_CALLS, min(_MOST_CALLS, calls))
        return Repetitions(self.budget, self.fewest, self.most, calls_in_turn=calls + 1)


_SECONDS = {LATE: (0.0, 50e-6, 500e-6, 5e-3), TRAINING: (1e-3, 5e-3, 20e-3)}
_MIDDLE = (2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB)
_OF_FOUR = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")

QUICK = PatternSuite(
    "quick",
    (
        Block(LATE, (4, 64 * KIB, MIB)),
        Block(TRAINING, (4, MIB)),
        Block(WAIT, (4,)),
        Block(TIGHT, (4,)),
        Block(BATCH, (4, MIB)),
        *(Block(BATCH, (4 * MIB, 16 * MIB), name) for name in ("send_recv", "broadcast")),
        *(Block(BATCH, (64, 4 * MIB), name, 4) for name in _OF_FOUR),
    ),
    {**_SECONDS, WAIT: (2.0,)},
    repeats=20,
    budget=1.0,
    fewest=3,
    most=60,
)
STANDARD = PatternSuite(
    "standard",
    (
        Block(LATE, (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB)),
        Block(TRAINING, (4, 64 * KIB, MIB, 16 * MIB)),
        Block(WAIT, (4,)),
        Block(TIGHT, (4,)),
        Block(BATCH, (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB)),
        *(Block(BATCH, _MIDDLE, name) for name in ("send_recv", "broadcast")),
        *(Block(BATCH, (64, 16 * KIB, MIB, 4 * MIB, 16 * MIB), name, 4) for name in _OF_FOUR),
    ),
    {**_SECONDS, WAIT: (10.0,)},
    repeats=20,
    budget=4.0,
    fewest=8,
    most=400,
)
