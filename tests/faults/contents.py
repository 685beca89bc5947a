"""What ranks send in the tests of faults: another value at each place.

If all values were equal, memory that a rank read too early, or at another place, would look right.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

_VALUES = np.arange(251)
"""They repeat after a prime number of places, so never after a piece of memory."""


def of_rank(rank: int, count: int, dtype: Any = float) -> np.ndarray:
    """Return what ``rank`` sends: ``count`` values."""
    return np.resize((_VALUES + rank).astype(dtype), count)


def total(ranks: Collection[int], count: int, dtype: Any = float) -> np.ndarray:
    """Return the sum of what ``ranks`` send."""
    return np.resize((_VALUES * len(ranks) + sum(ranks)).astype(dtype), count)
