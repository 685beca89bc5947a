"""What is measured against what: a peer opens, takes its turns, and closes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aiodist.bench.measured_operations import Call

Interval = tuple[int, int]
"""Start and end of a call, in ns of the clock that all processes of a host share."""

clock = time.perf_counter_ns


class UnsupportedError(Exception):
    """The peer does not have this operation; the message says why."""


@dataclass(frozen=True)
class Place:
    """Who this process is, and a store of torch's for the peer alone, to meet by."""

    rank: int
    ranks: int
    store: Any


class Peer(ABC):
    """One rank's part in one library. All ranks give each peer its turn in the same order."""

    name: str

    @abstractmethod
    def open(self, place: Place) -> None:
        """Meet the other ranks."""

    @abstractmethod
    def turn(self, call: Call, numbers: range) -> list[Interval]:
        """For each number: rewrite the buffers, meet, call and take the time, meet, check the result.

        Returns the interval of each call; ``call.repeats`` of them for each number.
        No rank checks while another's time runs: where ranks outnumber cores it would take one away.
        At the end all ranks meet once more. When it returns on this rank, no rank needs this one any
        more to end the turn: the next turn may block the thread, and this peer's event loop with
        it. Raises UnsupportedError on all ranks alike, before anything is sent.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave in good order."""


class BlockingPeer(Peer):
    """A peer whose operations block."""

    @abstractmethod
    def bind(self, call: Call) -> Callable[[], object]:
        """The operation on the call's buffers, ready to run."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    def turn(self, call: Call, numbers: range) -> list[Interval]:
        operation, repeats = self.bind(call), range(call.repeats)
        intervals: list[Interval] = []
        for number in numbers:
            self.write(call, number)
            self.barrier()
            call.arrive(number)
            stamps = [clock()]
            for _ in repeats:
                operation()
                stamps.append(clock())
            self.barrier()
            self.check_result(call, number)
            intervals += pairwise(stamps)
        self.barrier()
        return intervals

    def write(self, call: Call, number: int) -> None:
        """Rewrite the buffers."""
        call.write(number)

    def check_result(self, call: Call, number: int) -> None:
        """Raise WrongResultError unless the output is right."""
        call.check(number, self.name)
