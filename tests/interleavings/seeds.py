"""Which orders are tried: some in every run, many more by request, the same ones each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from aiodist.errors import DistError
from tests.interleavings.scheduler import Stuck

BLOCKS = (0, *(pytest.param(block, marks=pytest.mark.extended) for block in range(1, 13)))
"""Values of a parameter ``block``."""


def seeds(block: int, count: int) -> range:
    """Return ``count`` seeds for block 0, and five times as many others for each other one."""
    return range(count) if block == 0 else range(5 * block * count, 5 * (block + 1) * count)


def fails(run: Callable[[int], None], within: Iterable[int]) -> bool:
    """Return whether ``run(seed)`` fails for one of the seeds ``within``: the product has been changed."""
    for seed in within:
        try:
            run(seed)
        except (AssertionError, DistError, Stuck):
            return True
    return False
