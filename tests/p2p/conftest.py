"""Time as the tests of shared memory have it: it passes by looking, whatever the machine does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from aiodist.p2p import shm_progress

SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Say how many seconds pass each time that a progress engine asks."""

    def set_clock(step: float) -> None:
        ticks = itertools.count(1)
        monkeypatch.setattr(shm_progress, "perf_counter", lambda: next(ticks) * step)

    return set_clock


@pytest.fixture
def steady_clock(set_clock: SetClock) -> None:
    """A microsecond each time."""
    set_clock(1e-6)
