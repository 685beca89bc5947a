"""What every peer's turn is: nothing else runs while a rank's time does."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from aiodist.bench.cases import Case
from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import BlockingPeer, Interval, Peer, Place, clock
from benchmarks.peers import make_peer
from benchmarks.rank import empty

RANKS = 2
NUMBERS = range(2)


class Watched(Call):
    """Notes when it is written and checked."""

    def __init__(self, rank: int) -> None:
        super().__init__(Case("broadcast", RANKS, 64), rank, empty)
        self.written: list[int] = []
        self.checked: list[int] = []

    def write(self, turn: int) -> None:
        super().write(turn)
        self.written.append(clock())

    def check(self, turn: int, peer: str) -> None:
        self.checked.append(clock())
        super().check(turn, peer)


def delayed(peer: Peer, seconds: float) -> None:
    """Let the thread of ``peer`` sleep in each operation, within the time that is taken."""
    name = "bind" if isinstance(peer, BlockingPeer) else "_bind"
    bind: Callable[[Call], Callable[[], object]] = getattr(peer, name)

    def bound(call: Call) -> Callable[[], object]:
        operation = bind(call)

        def run() -> object:
            found = operation()
            time.sleep(seconds)
            return found

        return run

    setattr(peer, name, bound)


@pytest.mark.usefixtures("libuv")
@pytest.mark.parametrize("name", ["async", "blocking"])
def test_no_rank_writes_or_checks_while_the_time_of_another_runs(name: str) -> None:
    store = HashStore()

    def turn(rank: int) -> tuple[Watched, list[Interval]]:
        peer, call = make_peer(name), Watched(rank)
        peer.open(Place(rank, RANKS, store))
        delayed(peer, 0.05 * rank)
        try:
            return call, peer.turn(call, NUMBERS)
        finally:
            peer.close()

    with ThreadPoolExecutor(RANKS) as threads:
        found = list(threads.map(turn, range(RANKS)))

    for number in NUMBERS:
        starts, ends = zip(*(intervals[number] for _, intervals in found), strict=True)
        assert max(call.written[number] for call, _ in found) < min(starts)
        assert max(ends) < min(call.checked[number] for call, _ in found)
        assert max(ends) - min(ends) > 0.02e9  # one of them was late, as it was to be
