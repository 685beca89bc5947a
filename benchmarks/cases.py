"""What is measured, as data: operations, sizes, ranks, and how much time each case gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiodist.bench.cases import ITEMSIZE, KIB, MIB, OPERATIONS, SPLIT, Case
from benchmarks.steps import cases as steps


@dataclass(frozen=True)
class Suite:
    """Cases, and the bounds on their repetitions."""

    name: str
    operations: tuple[str, ...]
    sizes: dict[int, tuple[int, ...]]
    """Bytes to measure, for each number of ranks."""
    budget: float
    """Seconds that the measured rounds of a case may take, if the fewest rounds take less."""
    fewest: int
    most: int
    """Rounds of a case in all: in each, every peer is measured once."""
    passes: int = 1
    """Rounds are divided among so many passes over all cases, each with processes of its own."""
    steps: steps.Steps = steps.Steps()  # noqa: RUF009  # frozen
    """Training steps, after the operations."""

    def blocks(self) -> Iterator[tuple[int, str, list[Case]]]:
        """(ranks, operation, cases), in the order of measuring."""
        for ranks in self.sizes:
            for operation in self.operations:
                cases = list(self.cases(operation, ranks))
                if cases:
                    yield ranks, operation, cases

    def cases(self, operation: str, ranks: int) -> Iterator[Case]:
        """The cases of one block; none for messages between two ranks where there are more."""
        if operation == "send_recv" and ranks != 2:
            return
        if operation == "barrier":
            yield Case(operation, ranks, 0)
            return
        for nbytes in self.sizes[ranks]:
            count = nbytes // ITEMSIZE
            if operation not in SPLIT or (count and count % ranks == 0):
                yield Case(operation, ranks, nbytes // ITEMSIZE * ITEMSIZE)


POWERS_OF_4 = tuple(4**exponent for exponent in range(1, 14))  # 4 B to 64 MiB
LARGE = (100 * MIB, 256 * MIB)
POWERS_OF_16 = POWERS_OF_4[::2]  # 4 B to 64 MiB

QUICK = Suite(
    "quick",
    OPERATIONS,
    {2: (4, 64, 16 * KIB, MIB, 16 * MIB), 4: (64, MIB)},
    budget=0.2,
    fewest=3,
    most=50,
    steps=steps.QUICK,
)
STANDARD = Suite(
    "standard",
    OPERATIONS,
    {2: POWERS_OF_4[:-1] + LARGE, 4: (*POWERS_OF_16[:-1], 100 * MIB), 8: POWERS_OF_16[:-1]},
    budget=0.8,
    fewest=12,
    most=300,
    passes=3,
    steps=steps.STANDARD,
)
FULL = Suite(
    "full",
    OPERATIONS,
    {2: POWERS_OF_4 + LARGE, 4: POWERS_OF_4 + LARGE, 8: POWERS_OF_4 + LARGE},
    budget=3.0,
    fewest=11,
    most=1000,
    passes=3,
    steps=steps.FULL,
)
