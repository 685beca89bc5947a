"""What an algorithm may know of memory: how to combine two stretches of it, where to get some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Scratch = Callable[[int], memoryview]
"""``scratch(n)`` gives ``n`` writable bytes (0 too), aligned for any element type.

Every call gives memory of its own, with arbitrary contents. It belongs to the algorithm until the
coroutine has ended, by return or by error; the owner may then hand it to the next one.
"""


class Reduction(Protocol):
    """A reduce operation bound to an element type; memory is seen as a run of such elements.

    Must be a pure function of the bytes: the same two operands in the same order give the same
    bits on every rank, whatever their addresses. Lengths are equal and whole elements; 0 is fine.
    """

    itemsize: int
    """Bytes of one element; algorithms cut data only at multiples of it."""

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        """``acc = op(acc, other)``, or ``op(other, acc)`` where ``other_first``."""

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        """``out = op(a, b)``. ``out`` may be exactly the memory of ``a`` or of ``b``."""

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        """`into` of these very views, to be called again and again."""
