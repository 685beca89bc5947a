"""What is measured, as data: operations, sizes, ranks, and how much time each case gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.steps import cases as steps

KIB = 1 << 10
MIB = 1 << 20
ITEMSIZE = 4
"""Elements are float32."""

SPLIT = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
"""Operations that divide their larger tensor into equal parts, one for each rank."""


@dataclass(frozen=True)
class Case:
    """One operation at one size. ``nbytes`` is the larger tensor of a rank; 0 for barrier."""

    operation: str
    ranks: int
    nbytes: int

    @property
    def count(self) -> int:
        """Elements of the larger tensor."""
        return self.nbytes // ITEMSIZE

    def __str__(self) -> str:
        return f"{self.operation}, {self.ranks} ranks, {size_text(self.nbytes)}"


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


OPERATIONS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)

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


def size_text(nbytes: int) -> str:
    """``4 B``, ``16 KiB``, ``1 MiB``."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"
