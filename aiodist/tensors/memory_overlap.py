"""Whether two stretches of memory share bytes."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.tensors.raw_memory import address_of


def overlap(first: memoryview, second: memoryview) -> bool:
    """Return whether the two share bytes."""
    if not len(first) or not len(second):
        return False
    start, other = address_of(first), address_of(second)
    return start < other + len(second) and other < start + len(first)


def overlaps_others(view: memoryview, blocks: Sequence[memoryview], rank: int) -> bool:
    """Return whether ``view`` shares bytes with ``blocks``, unless it is exactly ``blocks[rank]``.

    A part of ``blocks[rank]`` counts as another block.
    """
    return any(
        overlap(view, block) and not (number == rank and _are_equal(view, block))
        for number, block in enumerate(blocks)
    )


def _are_equal(first: memoryview, second: memoryview) -> bool:
    """Return whether the two, which are not empty, are the same stretch."""
    return len(first) == len(second) and address_of(first) == address_of(second)
