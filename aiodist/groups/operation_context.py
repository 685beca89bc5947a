"""What a `Work` knows of the messages of its operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.p2p.spin_policy import SpinPolicy


class OperationContext(Protocol):
    """The messages of one operation, as its `Work` sees them."""

    def describe(self) -> str:
        """The operation in words: name, number, group."""
        ...

    def waiting_for(self) -> Sequence[int]:
        """Global ranks whose messages have not come, or have not been taken."""
        ...

    @property
    def spin_policy(self) -> SpinPolicy | None:
        """How long to look for what is missing before sleeping; None: do not look."""
        ...

    def polls(self) -> Sequence[Callable[[], None]]:
        """What to call to look for what is missing."""
        ...

    def over(self, error: BaseException | None) -> BaseException | None:
        """The operation ended: take back what is left of it. Returns the error to report."""
        ...

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        """Time is up: find out which ranks are missing, then ``fail`` with CollectiveTimeoutError."""
        ...
