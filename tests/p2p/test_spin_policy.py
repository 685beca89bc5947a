"""The spin policy: it looks while messages are near, sleeps when they are not, and learns which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiodist.p2p import spin_policy as module
from aiodist.p2p.spin_policy import LONGEST, SHORTEST, SpinPolicy


class Clock:
    """Time as the test says it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(monkeypatch, active: bool = True) -> tuple[SpinPolicy, Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    spin_policy = SpinPolicy(asyncio.get_running_loop().call_soon)
    spin_policy.active = active
    return spin_policy, clock


async def test_looks_until_done(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    polled: list[float] = []

    def poll() -> None:
        polled.append(clock.now)
        clock.now += 10e-6

    spin_policy.look([poll], lambda: len(polled) == 3, 1.0, 1.0)
    assert len(polled) == 3


async def test_callbacks_that_are_due_soon_run_during_the_spin(monkeypatch) -> None:
    """The loop has no turn meanwhile. What is left over at the end goes to the loop."""
    spin_policy, clock = make(monkeypatch)
    done: list[str] = []

    def poll() -> None:
        clock.now += 10e-6
        done.append("poll")
        spin_policy.call_after_turn(lambda: done.append("soon"))

    spin_policy.look([poll], lambda: done.count("soon") == 2, 1.0, 1.0)
    assert done == ["poll", "soon", "poll", "soon"]
    spin_policy.call_after_turn(lambda: done.append("loop"))
    assert done[-1] != "loop"  # no caller polls: the loop runs it
    await asyncio.sleep(0)
    assert done[-1] == "loop"


async def test_callbacks_that_are_due_at_the_end_of_the_spin_are_left_to_the_loop(
    monkeypatch,
) -> None:
    spin_policy, _ = make(monkeypatch)
    done: list[str] = []

    def again() -> None:
        done.append("again")
        if len(done) < 10:
            spin_policy.call_after_turn(again)

    spin_policy.look([lambda: spin_policy.call_after_turn(again)], lambda: len(done) >= 3, 1.0, 1.0)
    looked = len(done)
    await asyncio.sleep(0)
    assert len(done) > looked


async def test_polls_no_longer_than_the_limit_without_progress(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    start = clock.now

    def poll() -> None:
        clock.now += 10e-6

    spin_policy.look([poll], lambda: False, 95e-6, 1.0)
    assert 95e-6 < clock.now - start < 115e-6


async def test_progress_extends_polling_up_to_the_longest_limit(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    start = clock.now

    def poll() -> None:
        clock.now += 10e-6
        spin_policy.note_progress()

    spin_policy.look([poll], lambda: False, 15e-6, 995e-6)
    assert 995e-6 < clock.now - start < 1015e-6


async def test_long_waits_shorten_polling_and_short_ones_lengthen_it(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    spin_policy.begin()
    for _ in range(20):
        clock.now += 10 * LONGEST
        spin_policy.note_progress()
    assert spin_policy.window == SHORTEST
    for _ in range(20):
        clock.now += LONGEST / 2
        spin_policy.note_progress()
    assert spin_policy.window == LONGEST
    spin_policy.end()


async def test_bytes_that_arrive_without_a_waiter_do_not_change_the_spin_time(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    clock.now += 1.0
    spin_policy.note_progress()
    assert spin_policy.window == LONGEST


async def test_keeps_the_loop_awake_while_a_caller_waits(monkeypatch) -> None:
    spin_policy, clock = make(monkeypatch)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        clock.now += LONGEST / 10

    monkeypatch.setattr(module, "yield_core", turn)
    spin_policy.begin()
    for _ in range(100):
        await asyncio.sleep(0)
    assert 9 <= turns <= 11  # the window, and no more
    spin_policy.note_progress()
    for _ in range(100):
        await asyncio.sleep(0)
    assert 14 <= turns <= 16  # what came woke it again, for half: it had been waited for so long
    spin_policy.end()
    spin_policy.note_progress()
    for _ in range(100):
        await asyncio.sleep(0)
    assert 14 <= turns <= 16  # no caller waits


def test_a_rank_that_a_signals_handler_strikes_as_it_spins_spins_in_its_next_wait(
    monkeypatch,
) -> None:
    def strike() -> None:
        raise KeyError("of a handler")

    scheduled: list[Callable[[], None]] = []
    spin_policy = SpinPolicy(scheduled.append)
    spin_policy.active = True
    spin_policy.begin()
    (turn,) = scheduled
    with monkeypatch.context() as patch:
        patch.setattr(module, "yield_core", strike)
        with pytest.raises(KeyError):
            turn()
    spin_policy.end()
    spin_policy.begin()
    assert scheduled == [turn, turn]


async def test_never_takes_a_core_from_another_rank(monkeypatch) -> None:
    spin_policy, _ = make(monkeypatch, active=False)
    monkeypatch.setattr(module, "yield_core", lambda: 1 / 0)
    spin_policy.begin()
    spin_policy.note_progress()
    for _ in range(10):
        await asyncio.sleep(0)
    spin_policy.end()


def test_where_ranks_share_cores_polling_yields_and_finally_sleeps(monkeypatch) -> None:
    yields: list[None] = []
    sleeps: list[float] = []
    monkeypatch.setattr(module, "yield_core", lambda: yields.append(None))
    monkeypatch.setattr(module, "sleep", sleeps.append)
    spin_policy = SpinPolicy(lambda _: None)
    for times in range(100):
        spin_policy.yield_core(times)
    assert (len(yields), len(sleeps)) == (100, 0)
    spin_policy.oversubscribed = True
    for times in range(100):
        spin_policy.yield_core(times)
    assert 0 < len(yields) - 100 < 50
    assert len(yields) - 100 + len(sleeps) == 100
    assert max(sleeps) < 1e-4


async def test_a_rank_whose_core_is_lent_does_not_keep_the_loop_awake(monkeypatch) -> None:
    turns: list[Callable[[], None]] = []
    spin_policy = SpinPolicy(turns.append)
    spin_policy.active = True
    spin_policy.lent = 1
    spin_policy.begin()
    spin_policy.note_progress()
    assert turns == []
    spin_policy.lent = 0
    spin_policy.note_progress()
    turn = turns.pop()
    spin_policy.lent = 1
    turn()
    assert turns == []
    spin_policy.end()
