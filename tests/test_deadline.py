"""Deadlines and what counts as a timeout."""

from __future__ import annotations

import math
import threading
from datetime import timedelta

import pytest

from aiodist import deadline
from aiodist.deadline import SIGNAL_SECONDS, Deadline, acquire, to_seconds
from aiodist.errors import InvalidUsageError


def test_remaining_counts_down_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now)
    limit = Deadline(2.0)
    assert limit.remaining() == 2.0
    assert not limit.expired()
    now = 101.5
    assert limit.remaining() == 0.5
    now = 102.0
    assert limit.expired()
    now = 500.0
    assert limit.remaining() == 0.0
    assert "of 2.0" in repr(limit)


def test_a_later_deadline_is_later_and_has_a_longer_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now)
    limit = Deadline(2.0)
    now = 101.0
    assert limit.later(0.5).remaining() == 1.5
    assert limit.later(0.5).timeout == 2.5
    assert Deadline.never().later(0.5).timeout is None
    assert Deadline.never().later(0.5).remaining() == math.inf


def test_never_is_never() -> None:
    limit = Deadline.never()
    assert limit.remaining() == math.inf
    assert not limit.expired()
    assert limit.timeout is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), (1, 1.0), (0.5, 0.5), (timedelta(milliseconds=1500), 1.5)],
)
def test_to_seconds(given: float | timedelta | None, seconds: float | None) -> None:
    assert to_seconds(given) == seconds


@pytest.mark.parametrize("given", ["1", True, [1], b"1"])
def test_to_seconds_refuses_other_types(given: object) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        to_seconds(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [0, -1, math.nan, timedelta(0), timedelta(seconds=-3)])
def test_to_seconds_refuses_values_that_are_not_positive(given: float | timedelta) -> None:
    with pytest.raises(InvalidUsageError, match=r"must be positive, got .*; math\.inf is no limit"):
        to_seconds(given)


class SlowLock:
    """Is free when it has been asked for the third time."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def acquire(self, *, timeout: float) -> bool:
        self.asked.append(timeout)
        return len(self.asked) == 3


def test_a_thread_sleeps_for_a_second_at_a_time_so_that_no_signal_is_lost() -> None:
    lock = SlowLock()
    assert acquire(lock)
    assert lock.asked == [SIGNAL_SECONDS] * 3


def test_a_lock_is_asked_for_no_longer_than_the_limit() -> None:
    lock = threading.Lock()
    assert acquire(lock, 0.01)
    assert not acquire(lock, 0.01)
