"""Who is missing from a collective that has not ended in time.

In a ring or a tree a rank waits for its neighbour, which may wait for the next: to name the one it
waits for would blame a bystander. So the rank whose time is up asks all members whether they have
entered the operation, and gives them a moment to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

ANSWER_SECONDS = 0.5
"""A rank whose loop has not answered by then counts as missing: it is stuck, or gone."""


class Roll:
    """A roll call under way. ``done(missing)`` is called once, unless it is dropped before.

    ``missing``: the ranks that have not entered, in order, each with the last operation that it
    says it has finished, or an empty text.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        asked: Iterable[int],
        absent: Iterable[int],
        done: Callable[[dict[int, str]], None],
    ) -> None:
        """``asked``: global ranks that will answer; ``absent``: those that cannot."""
        self._silent = set(asked)
        self._absent = dict.fromkeys(absent, "")
        self._done = done
        # At once, also where nobody is left to ask: later, for whoever keeps the roll.
        seconds = ANSWER_SECONDS if self._silent else 0.0
        self._timer = loop.call_later(seconds, self._finish)

    def answered(self, rank: int, entered: bool, last: str = "") -> None:
        """``rank`` has entered the operation, or has not; ``last``: what it has finished."""
        if rank in self._silent:
            self._silent.discard(rank)
            if not entered:
                self._absent[rank] = last
            if not self._silent:
                self.drop()
                self._finish()

    def drop(self) -> None:
        """The operation has ended meanwhile."""
        self._timer.cancel()

    def _finish(self) -> None:
        missing = self._absent | dict.fromkeys(self._silent, "")
        self._done({rank: missing[rank] for rank in sorted(missing)})
