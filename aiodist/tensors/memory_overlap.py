"""Whether two stretches of memory share bytes, or the elements of one that is strided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Whether two elements share memory; ``strides`` and the element's ``width`` in one unit.

    Writing into such memory has no defined result, for instance into an expanded tensor.
    """
    if 0 in shape:
        return False
    dims = sorted((abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1)
    reach = width
    for step, size in dims:
        if step == 0:
            return True
        if step < reach:
            break
        reach = step * (size - 1) + reach
    else:
        return False
    # Interleaved strides, as as_strided can make them: rare, so count the offsets one by one.
    offsets = np.zeros(1, np.int64)
    for step, size in dims:
        offsets = np.add.outer(offsets, np.arange(size, dtype=np.int64) * step).reshape(-1)
    offsets.sort()
    return bool((np.diff(offsets) < width).any())
