"""A call in its pattern: what a rank does before it calls, and what memory holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist.bench.measure import Samples
from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import clock
from benchmarks.arrival.cases import LATE, TRAINING, WAIT, PatternCase

_COMPUTED = 1 << 16
"""Elements that a computing rank multiplies at a time: 256 KiB, some 20 us."""


class PatternCall(Call):
    """The memory of one case on one rank, and the rank's arrival at each call."""

    def __init__(
        self, case: PatternCase, rank: int, empty: Callable[[int], tuple[Any, Array]]
    ) -> None:
        super().__init__(case.case, rank, empty)
        self.pattern = case.pattern
        self.repeats = case.pattern.repeats
        self._values = np.ones(_COMPUTED, np.float32)
        self._busy_since = 0
        self._busy: dict[str, list[tuple[int, int]]] = {}

    def arrive(self, number: int) -> None:
        """Compute before call ``number`` as the pattern says. The ranks are late by turns."""
        pattern = self.pattern
        is_late = number % self.case.ranks == self.rank
        if pattern.kind == TRAINING or (pattern.kind in (LATE, WAIT) and is_late):
            self._compute(pattern.seconds)
        self._busy_since = time.process_time_ns()

    def check(self, turn: int, peer: str) -> None:
        self._busy.setdefault(peer, []).append((self._busy_since, time.process_time_ns()))
        if self.repeats > 1 and self.operation == "all_reduce":
            # In place, each further call has multiplied the sums by the number of ranks.
            np.multiply(self._target, self.case.ranks ** (1 - self.repeats), out=self._target)
        super().check(turn, peer)

    def samples(self, samples: Samples) -> Samples:
        """Return ``samples``; for the pattern ``wait`` the processor's time in place of each interval."""
        if self.pattern.kind != WAIT:
            return samples
        kept = {peer: self._busy[peer][-len(found) :] for peer, found in samples.intervals.items()}
        return Samples(kept, samples.unsupported)

    def _compute(self, seconds: float) -> None:
        end = clock() + int(seconds * 1e9)
        while clock() < end:
            np.multiply(self._values, np.float32(1.0), out=self._values)
