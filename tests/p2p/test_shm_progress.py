"""What is copied when: turns, and sleep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiodist.p2p.shm_progress import ShmProgress
from aiodist.p2p.spin_policy import SpinPolicy

pytestmark = pytest.mark.usefixtures("steady_clock")


class FakeProgressSource:
    """So many steps can be made, of so many that are to be made."""

    def __init__(self, can: int, must: int) -> None:
        self.can = can
        self.must = must
        self.rests = 0
        self.looks = 0  # calls of `step` that found nothing
        self.on_look: Callable[[], None] | None = None

    @property
    def is_busy(self) -> bool:
        return self.must > 0

    def step(self) -> bool:
        if not self.can:
            self.looks += 1
            if self.on_look is not None:
                self.on_look()
            return False
        self.can -= 1
        self.must -= 1
        return True

    def arm(self) -> bool:
        self.rests += 1
        return not self.can


class Rank:
    def __init__(self, *, active: bool = False) -> None:
        self.soon: list[Callable[[], None]] = []
        self.spin_policy = SpinPolicy(self.soon.append)
        self.spin_policy.active = active
        self.shm_progress = ShmProgress(None, self.spin_policy)

    def run_soon(self) -> int:
        calls, self.soon[:] = list(self.soon), []
        for call in calls:
            call()
        return len(calls)


def test_a_source_that_can_progress_does_so_at_once_and_is_dropped() -> None:
    rank = Rank()
    sources = [FakeProgressSource(3, 3), FakeProgressSource(5, 5)]
    for source in sources:
        rank.shm_progress.activate(source)
        assert not source.must
        assert source.rests
    rests = [source.rests for source in sources]
    rank.shm_progress.work()
    assert [source.rests for source in sources] == rests
    assert not rank.soon


def test_a_waiting_source_sleeps_at_once_where_ranks_share_cores() -> None:
    rank = Rank()
    source = FakeProgressSource(2, 3)
    rank.shm_progress.activate(source)
    assert (source.must, source.rests, source.looks) == (1, 1, 1)
    source.can = 1
    rank.shm_progress.work()
    assert not source.must


def test_progress_spins_for_the_next_piece_where_each_rank_has_a_core() -> None:
    rank = Rank(active=True)
    source = FakeProgressSource(1, 2)

    def come() -> None:
        source.can = source.must

    source.on_look = come  # while it looks
    rank.shm_progress.activate(source)
    assert not source.must


def test_looking_ends() -> None:
    rank = Rank(active=True)
    source = FakeProgressSource(1, 2)
    rank.shm_progress.activate(source)
    assert source.rests == 1
    assert source.looks > 1


def test_the_loop_gets_its_turn_in_the_middle() -> None:
    rank = Rank()
    source = FakeProgressSource(1 << 40, 1 << 40)
    rank.shm_progress.activate(source)
    first = source.must
    assert source.rests == 0
    assert rank.run_soon() == 1
    assert source.must < first
    source.must = source.can = 1
    assert rank.run_soon() == 1
    assert not source.must
    assert not rank.soon


def test_a_source_added_during_progress_makes_progress_too() -> None:
    rank = Rank()
    second = FakeProgressSource(4, 4)

    class First(FakeProgressSource):
        def step(self) -> bool:
            if self.can == 1:
                rank.shm_progress.activate(second)
                assert second.must == 4  # not by recursion
            return super().step()

    rank.shm_progress.activate(First(2, 2))
    assert not second.must
