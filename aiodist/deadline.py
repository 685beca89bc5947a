"""A deadline is computed once, where an operation starts, and handed down; no step starts its own clock."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from numbers import Real
from typing import Protocol

from aiodist.errors import InvalidUsageError

SIGNAL_SECONDS = 1.0
"""The longest that a thread sleeps at a time, after which it handles a signal.

Python loses a signal's wake-up if the signal comes between the last bytecode and the sleep of a thread.
"""


class Lock(Protocol):
    """What `acquire` needs of a lock, such as a `threading.Lock`."""

    def acquire(self, *, timeout: float) -> bool:
        """Return whether it was acquired within ``timeout`` seconds."""


class Deadline:
    """A point on the monotonic clock. Immutable; ``Deadline.never()`` is infinitely far away."""

    __slots__ = ("at", "timeout")

    def __init__(self, timeout: float | timedelta | None) -> None:
        """``timeout``: seconds (or a timedelta) from now; None means never."""
        seconds = to_seconds(timeout)
        self.timeout = seconds
        self.at = math.inf if seconds is None else time.monotonic() + seconds

    @classmethod
    def never(cls) -> Deadline:
        return cls(None)

    def later(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` after this one."""
        after = Deadline(self.timeout and self.timeout + seconds)
        after.at = self.at + seconds
        return after

    def remaining(self) -> float:
        """Seconds left, never negative; ``math.inf`` where there is no limit."""
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        return time.monotonic() >= self.at

    def __repr__(self) -> str:
        return f"Deadline({self.remaining():.3f} s left of {self.timeout})"


def to_seconds(timeout: float | timedelta | None) -> float | None:
    """Seconds as a float from what users pass as a timeout. Raises TypeError or InvalidUsageError."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, Real) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise TypeError(
            f"timeout must be a number of seconds or a datetime.timedelta, not {timeout!r}"
        )
    if not seconds > 0:
        raise InvalidUsageError(f"timeout must be positive, got {timeout!r}; math.inf is no limit")
    return seconds


def acquire(lock: Lock, seconds: float = math.inf) -> bool:
    """Acquire ``lock`` within ``seconds``, and return whether that succeeded. A signal interrupts it."""
    deadline = Deadline(seconds)
    while not lock.acquire(timeout=min(deadline.remaining(), SIGNAL_SECONDS)):
        if deadline.expired():
            return False
    return True
