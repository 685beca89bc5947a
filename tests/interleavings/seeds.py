"""Which orders are tried: some in every run, many more by request, the same ones each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from aiodist.errors import DistError
from tests.interleavings.scheduler import Stuck

BLOCKS = (0, *(pytest.param(block, marks=pytest.mark.extended) for block in range(1, 5)))
"""Values of a parameter ``block``."""


def seeds(block: int, count: int) -> range:
    """Return ``count`` seeds for block 0, and five times as many others for each other one."""
    return range(count) if block == 0 else range(5 * block * count, 5 * (block + 1) * count)


WRONG = (AssertionError, DistError)
"""What a run raises whose results are wrong; `Stuck` where a rank or a thread sleeps for ever."""


def fails(run: Callable[[int], None], within: Iterable[int], *kinds: type[Exception]) -> bool:
    """Return whether ``run(seed)`` raises one of ``kinds`` for one of the seeds ``within``.

    The product has been changed, so other kinds pass unnoticed. What the model itself refuses is raised.
    """
    for seed in within:
        try:
            run(seed)
        except (*WRONG, Stuck) as error:
            if isinstance(error, kinds):
                return True
    return False
