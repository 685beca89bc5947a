"""Memory that is not there: it has a length and parts, and costs time to copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast


class Extent:
    """Stands for a memoryview of bytes in an algorithm that is simulated.

    ``charge(nbytes)`` is told of every byte that is copied into it.
    """

    __slots__ = ("_charge", "_length")

    def __init__(self, length: int, charge: Callable[[int], None]) -> None:
        self._length = length
        self._charge = charge

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Extent:
        start, end, _ = part.indices(self._length)
        return Extent(max(0, end - start), self._charge)

    def __setitem__(self, part: slice, data: Any) -> None:
        start, end, _ = part.indices(self._length)
        if max(0, end - start) != len(data):
            raise ValueError(f"{len(data)} bytes do not fill {max(0, end - start)}")
        self._charge(len(data))


def extent(length: int, charge: Callable[[int], None]) -> memoryview:
    """An `Extent`, as algorithms take memory: they slice it, fill it and ask for its length."""
    return cast("memoryview", Extent(length, charge))


class CostOnly:
    """A `Reduction` that takes the time of one and does nothing else."""

    def __init__(self, itemsize: int, charge: Callable[[int], None]) -> None:
        self.itemsize = itemsize
        self._charge = charge

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        self._charge(len(acc))

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        self._charge(len(out))

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        return partial(self._charge, len(out))
