"""What a `Work` knows of the messages of its operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.p2p.spin_policy import SpinPolicy


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

    def sleeper(self) -> ShmCommunicator | None:
        """Return what a blocked thread may sleep by until the operation can go on; None: a callback."""

    def close(self, error: BaseException | None) -> BaseException | None:
        """Take back what is left of the operation, which ended. Returns the error to report."""

    def hand_back(self) -> Callable[[], None] | None:
        """Return how to give the message of a receive to the next receive; None: it has none to give."""

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        """Find out which ranks are missing, then ``fail`` with CollectiveTimeoutError: time is up."""
