"""What is measured: an operation, ranks and bytes."""

from __future__ import annotations

from dataclasses import dataclass

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


OPERATIONS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)


def size_text(nbytes: int) -> str:
    """``4 B``, ``16 KiB``, ``1 MiB``."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"
