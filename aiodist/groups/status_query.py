"""Which ranks are missing from an operation that has not ended in time, and what they do instead.

In a ring or a tree a rank waits for its neighbour, which may wait for the next: the rank that it waits for
may not be the one that is late. So the rank whose time is up asks all members whether they have entered the
operation, and gives them a moment to answer. They also say which operation they are in: ranks that call two
groups in opposite order wait for each other, and nothing else shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from aiodist.p2p.endpoint_events import StatusAnswer

if TYPE_CHECKING:
    import asyncio

    from aiodist.p2p.endpoint import Endpoint

ANSWER_SECONDS = 0.5
"""A rank whose loop has not answered by then counts as missing: it is stuck, or gone."""

Answers = dict[int, StatusAnswer | None]
"""By global rank, in order, what each of those asked has answered; None of one that has not."""


class StatusQuery:
    """A status query under way. ``done(answers)`` is called once, unless it is dropped before."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        asked: Iterable[int],
        absent: Iterable[int],
        done: Callable[[Answers], None],
    ) -> None:
        """``asked``: global ranks that will answer; ``absent``: those that cannot."""
        self._silent = set(asked)
        self._answers: Answers = dict.fromkeys((*self._silent, *absent))
        self._done = done
        # Also with no rank to ask the answer comes later, when the caller has stored this query.
        seconds = ANSWER_SECONDS if self._silent else 0.0
        self._timer = loop.call_later(seconds, self._finish)

    def answered(self, rank: int, answer: StatusAnswer) -> None:
        """Take what ``rank`` answers."""
        if rank in self._silent:
            self._silent.discard(rank)
            self._answers[rank] = answer
            if not self._silent:
                self.drop()
                self._finish()

    def drop(self) -> None:
        """Cancel the query: the operation has ended."""
        self._timer.cancel()

    def _finish(self) -> None:
        self._silent.clear()  # an answer that comes later is ignored
        self._done(dict(sorted(self._answers.items())))


class StatusQueries:
    """The status queries of a group, by the number of the collective; that of a message is below 0."""

    __slots__ = ("_by_number", "_endpoint", "_group", "_last", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, group: int) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._group = group
        self._by_number: dict[int, StatusQuery] = {}
        self._last = 0

    def new_number(self) -> int:
        """Return a number for an operation that has none."""
        self._last -= 1
        return self._last

    def call(self, number: int, ranks: Sequence[int], done: Callable[[Answers], None]) -> None:
        """Ask the global ``ranks``, unless that has been done: an operation may have two timeouts."""
        if number in self._by_number:
            return
        asked = self._endpoint.query_status(self._group, number, ranks)
        absent = set(ranks).difference(asked)
        self._by_number[number] = StatusQuery(self._loop, asked, absent, done)

    def answered(self, number: int, rank: int, answer: StatusAnswer) -> None:
        """Take what ``rank`` answers."""
        status_query = self._by_number.get(number)
        if status_query is not None:
            status_query.answered(rank, answer)

    def drop(self, number: int) -> None:
        """Cancel the query: the operation has ended."""
        if self._by_number and (status_query := self._by_number.pop(number, None)) is not None:
            status_query.drop()
