"""The measuring itself, on one rank: rounds in which each peer has one turn."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import Interval, Peer, UnsupportedError

SHORT_TURN = 0.004
"""Seconds that the calls of a turn may take together where they are several."""
MOST_CALLS = 8


@dataclass(frozen=True)
class Repetitions:
    """``budget`` in seconds for the measured rounds, and the ``fewest`` and ``most`` rounds.

    ``calls_in_turn``: how many calls a turn has; 0: as many as their time allows.
    """

    budget: float
    fewest: int
    most: int
    calls_in_turn: int = 0

    def calls(self, seconds: float) -> int:
        """How many calls a turn has where a turn of one call takes ``seconds``.

        Short calls come in a row, and the first of the row does not count: caches and threads
        are still at the peer before. A program calls one library, not five by turns.
        """
        chosen = max(1, min(MOST_CALLS, int(SHORT_TURN / max(seconds, 1e-6))))
        return self.calls_in_turn or chosen

    def rounds(self, seconds: float) -> int:
        """How many rounds of ``seconds`` each to measure."""
        return max(self.fewest, min(self.most, int(self.budget / max(seconds, 1e-6))))


@dataclass
class Samples:
    """What one rank saw of one case. ``clock``: that of the intervals, by `times.clock_name`."""

    intervals: dict[str, list[Interval]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    clock: str = ""


def measure(
    peers: Sequence[Peer], call: Call, effort: Repetitions, agree: Callable[[int], int]
) -> Samples:
    """Give each peer one turn a round, forwards and backwards by turns.

    The first round opens connections and is not counted; the next ones tell how many calls make a
    turn, and how many rounds fit the effort. Where already the first is long it serves for both.
    ``agree`` gives all ranks rank 0's number.
    """
    samples = Samples()
    able = []
    start = time.perf_counter()
    for peer in peers:
        try:
            peer.turn(call, range(1))
        except UnsupportedError as error:
            samples.unsupported[peer.name] = str(error)
        else:
            able.append(peer)
    seconds = time.perf_counter() - start
    if not able:
        return samples
    if agree(seconds < effort.budget / 2):
        seconds = _round(able, call, 1)
    calls = agree(effort.calls(seconds / len(able)))
    if calls > 1:
        # The first call of a turn takes longest, so calls in a row leave room for more of them.
        seconds = _round(able, call, calls)
        warm = agree(effort.calls(seconds / len(able) / calls))
        if warm > calls:
            calls, seconds = warm, seconds / calls * warm
    rounds = agree(effort.rounds(seconds))
    samples.intervals = {peer.name: [] for peer in able}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            numbers = range(number * calls, (number + 1) * calls)
            for peer in able if number % 2 == 0 else reversed(able):
                found = peer.turn(call, numbers)
                samples.intervals[peer.name] += found[call.repeats :] if calls > 1 else found
    finally:
        gc.enable()
    return samples


def _round(peers: Sequence[Peer], call: Call, calls: int) -> float:
    """Run a round that is not counted; return the seconds that it took."""
    start = time.perf_counter()
    for peer in peers:
        peer.turn(call, range(calls))
    return time.perf_counter() - start


def encode(samples: Samples) -> str:
    """Return ``samples`` as JSON; `decode` is the reverse."""
    return json.dumps(dataclasses.asdict(samples))


def decode(text: str | bytes) -> Samples:
    """Return the samples that `encode` has written."""
    fields = json.loads(text)
    intervals = {
        name: [(start, end) for start, end in pairs] for name, pairs in fields["intervals"].items()
    }
    return Samples(intervals, fields["unsupported"], fields["clock"])
