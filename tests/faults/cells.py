"""The fault matrix as data: what breaks, when, over what, among how many, and within which bound."""

from __future__ import annotations

import itertools
import mmap
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from aiodist.api.settings import SHARED, schemes_from
from aiodist.credentials import VARIABLES as TLS_VARIABLES
from aiodist.errors import InvalidUsageError
from aiodist.shm.segment import Segment
from aiodist.transport.transports import Transports

KERNEL_SECONDS = 1.0
"""How soon all survivors know of a rank whose end the kernel can tell.

This and the bounds below are the promises. A test insists on this one, and adds only what the
machine itself was late by (`lateness`); on the others times AIODIST_TEST_TIMEOUT_SCALE as well. The
page counts what was within the promise.
"""

LIVENESS_SECONDS = 2.0
"""The liveness timeout of cells in which no peer reports the loss; the default is longer."""

SILENT_SECONDS = 2.0
"""The timeout of operations where only they can end it; by default it is longer."""

ROUND_SECONDS = 1.0
"""How much after a timeout has passed the last rank has been told."""

USUAL_SECONDS = 120.0
"""The timeout of operations elsewhere: longer than all bounds, so that nothing is saved by it."""

SLOW_SECONDS = 60.0
"""Bound on operations with links, or a rank, a hundred times slower than usual: they succeed."""

INIT_SECONDS = 4.0
"""The timeout of ``init_process_group`` where a rank never arrives."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to rank ``culprit``."""

    name: str
    ends: bool
    """The culprit does not go on: it is dead, or stopped until the test ends."""
    bound: float
    """Seconds from the fault until every survivor's operation has ended."""
    promise: str
    """What the bound is made of, for the page."""
    succeeds: bool = False
    """Operations succeed all the same."""
    timeout: float = USUAL_SECONDS
    """Seconds: of every operation."""
    liveness: float = 10.0
    """Seconds: the liveness timeout."""

    @property
    def exits(self) -> bool:
        """The culprit's process ends."""
        return self.ends and self.name != "SIGSTOP"


_KERNEL = f"{KERNEL_SECONDS:.0f} s"
_LIVENESS = f"liveness timeout (here {LIVENESS_SECONDS:.0f} s) + {ROUND_SECONDS:.0f} s"
_TIMEOUT = f"the operation's timeout (here {SILENT_SECONDS:.0f} s) + {ROUND_SECONDS:.0f} s"
_SUCCESS = f"operations succeed, here within {SLOW_SECONDS:.0f} s"
_SILENT = LIVENESS_SECONDS + ROUND_SECONDS

FAULTS = MappingProxyType(
    {
        fault.name: fault
        for fault in (
            Fault("SIGKILL", True, KERNEL_SECONDS, _KERNEL),
            Fault("exit without destroy", True, KERNEL_SECONDS, _KERNEL),
            Fault("exception", True, KERNEL_SECONDS, _KERNEL),
            Fault("cut link", False, KERNEL_SECONDS, _KERNEL),
            Fault("corrupted byte", False, KERNEL_SECONDS, _KERNEL),
            Fault("SIGSTOP", True, _SILENT, _LIVENESS, liveness=LIVENESS_SECONDS),
            Fault("half-open", False, _SILENT, _LIVENESS, liveness=LIVENESS_SECONDS),
            Fault(
                "half-open stream",
                False,
                SILENT_SECONDS + ROUND_SECONDS,
                _TIMEOUT,
                timeout=SILENT_SECONDS,
            ),
            Fault("slow", False, SLOW_SECONDS, _SUCCESS, succeeds=True),
            Fault("slow rank", False, SLOW_SECONDS, _SUCCESS, succeeds=True),
        )
    }
)

LARGE = "in all_reduce of 64 MiB"

PHASES = (
    "idle",
    "connecting",
    "in send",
    "in all_reduce of 4 B",
    LARGE,
    "in barrier",
    "in new_group",
)

IN_INIT = "in init_process_group"
"""One more, for a rank that ends before it has met the others."""

MEETING = "while ranks meet"
"""One more, for a rank that ends when all others have arrived in ``init_process_group``. Over tcp and tls
the store is rank 0's, over unix a file."""

AT_A_FLAG = "at a flag in shared memory"
"""One more, for shared memory: right after the culprit has written its nth flag, of all that it
writes in a row of collectives of every kind."""

FLAGS = 150
"""How many flags a rank writes in that row, at least."""

SOME_FLAGS = 7
"""SIGKILL is tried at each of them, SIGSTOP at one of so many. A rank that ends in order comes to no
end at a flag: Python unwinds its event loop first, and its operations are cancelled."""

SIZES = (2, 3, 4)
CULPRITS = ("first", "last")


def transports() -> tuple[str, ...]:
    """Each of what is offered between processes of one host."""
    candidates = (*Transports.default("127.0.0.1").schemes, "tls", SHARED)
    return tuple(filter(_is_offered, candidates))


def transport_variable(transport: str) -> str:
    """The value of AIODIST_TRANSPORT for it: ranks that share memory have streams as well."""
    return f"{SHARED},unix" if transport == SHARED else transport


def _is_offered(transport: str) -> bool:
    variables = {"AIODIST_TRANSPORT": transport_variable(transport), **tls_environment()}
    try:
        schemes_from(variables)
        if transport == SHARED:
            Segment.create(mmap.PAGESIZE).close()
    except (InvalidUsageError, OSError):
        return False
    return True


def tls_environment() -> dict[str, str]:
    """The variables with which the job's streams are by TLS."""
    from tests.certificates import tls_files  # what makes certificates is no part of a rank

    files = tls_files()
    return dict(zip(TLS_VARIABLES, (files.cert, files.key, files.ca), strict=True))


@dataclass(frozen=True)
class Cell:
    """One experiment."""

    fault: str
    phase: str
    transport: str
    size: int
    culprit_is: str = "last"
    flag: int = 0
    """For `AT_A_FLAG`: which."""

    @property
    def culprit(self) -> int:
        return 0 if self.culprit_is == "first" else self.size - 1

    @property
    def neighbour(self) -> int:
        """The other end of the one link that is cut, silent or damaged."""
        return (self.culprit + 1) % self.size

    @property
    def bound(self) -> float:
        """Seconds from the fault until every survivor's operation has ended."""
        if self.phase == IN_INIT:
            return INIT_SECONDS + ROUND_SECONDS
        return FAULTS[self.fault].bound

    @property
    def survivors(self) -> tuple[int, ...]:
        """The ranks whose operations must end: all but one that is dead or stopped."""
        ends = FAULTS[self.fault].ends
        return tuple(rank for rank in range(self.size) if not (ends and rank == self.culprit))

    def may_diagnose(self, rank: int) -> frozenset[int]:
        """The culprits that ``rank``'s error may name."""
        if FAULTS[self.fault].ends:
            return frozenset({self.culprit})
        if self.fault == "half-open" and rank != self.culprit:
            return frozenset({self.culprit})
        # Each end of a cut link calls the other one lost. A rank that hears of both may name
        # either, and an end may hear from the others that it is called lost itself.
        if rank == self.culprit or self.phase == "connecting" or self.fault != "cut link":
            return frozenset(range(self.size))
        return frozenset({self.culprit, self.neighbour})

    def __str__(self) -> str:
        words = [self.fault, self.phase, self.transport, f"{self.size} ranks", self.culprit_is]
        if self.flag:
            words.append(f"flag {self.flag}")
        return ", ".join(words).replace(" ", "_")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def all_cells() -> Iterator[Cell]:
    """Every combination."""
    for values in itertools.product(FAULTS, PHASES, transports(), SIZES, CULPRITS):
        yield Cell(*values)
    ends = [name for name, fault in FAULTS.items() if fault.ends]
    for fault, size, culprit in itertools.product(ends, SIZES, CULPRITS):
        yield Cell(fault, IN_INIT, transports()[0], size, culprit)
    streams = [name for name in transports() if name != SHARED]
    for fault, transport, size, culprit in itertools.product(ends, streams, SIZES, CULPRITS):
        yield Cell(fault, MEETING, transport, size, culprit)
    if SHARED in transports():
        for flag in range(1, FLAGS + 1):
            for fault in ("SIGKILL", "SIGSTOP") if flag % SOME_FLAGS == 1 else ("SIGKILL",):
                yield Cell(fault, AT_A_FLAG, SHARED, 3, CULPRITS[flag % 2], flag)


def pairwise(cells: Sequence[Cell]) -> list[Cell]:
    """Some of ``cells`` in which every two values that occur together in ``cells`` still do.

    Greedy: always the cell with the most pairs not seen yet (ties broken by a fixed shuffle).
    """
    order = list(cells)
    random.Random(1).shuffle(order)
    pairs = {cell: _pairs(cell) for cell in order}
    missing = frozenset().union(*pairs.values())
    chosen = []
    while missing:
        best = max(order, key=lambda cell: len(pairs[cell] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen, key=str)


def _pairs(cell: Cell) -> frozenset[tuple[tuple[str, object], ...]]:
    facts = cell.as_dict()
    del facts["flag"]  # each of them with each fault would be most of what is chosen
    return frozenset(itertools.combinations(facts.items(), 2))
