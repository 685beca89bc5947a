"""Geometry of strided memory: may one element's bytes be another's too?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
