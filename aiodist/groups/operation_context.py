"""What a `Work` knows of the messages of its operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.shm.doorbell import Doorbell


class Sleeper(Protocol):
    """How a thread that drives the engine sleeps, and is woken by the rank that it waits for."""

    @property
    def doorbell(self) -> Doorbell:
        """What the other rank rings."""

    def look(self) -> bool:
        """Go on with the operation if it can. Returns whether it did."""

    def fall_asleep(self) -> bool:
        """Note for the other ranks that a thread sleeps here. Returns False if it must not sleep now."""

    def suspect(self) -> None:
        """Look whether the rank that is waited for is gone: the thread has slept for long."""


class OperationContext(Protocol):
    """The messages of one operation, as its `Work` sees them."""

    def describe(self) -> str:
        """Return the operation in words: name, number, group."""

    def waiting_for(self) -> Sequence[int]:
        """Return global ranks whose messages have not come, or have not been taken."""

    @property
    def spin_policy(self) -> SpinPolicy | None:
        """How long to look for what is missing before sleeping; None: do not look."""

    def polls(self) -> Sequence[Callable[[], None]]:
        """Return what to call to look for what is missing."""

    def sleeper(self) -> Sleeper | None:
        """Return what a blocked thread may sleep by until the operation can go on; None: a callback."""

    def close(self, error: BaseException | None) -> BaseException | None:
        """Take back what is left of the operation, which ended. Returns the error to report."""

    def hand_back(self) -> Callable[[], None] | None:
        """Return how to give the message of a receive to the next receive; None: it has none to give."""

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        """Find out which ranks are missing, then ``fail`` with CollectiveTimeoutError: time is up."""
