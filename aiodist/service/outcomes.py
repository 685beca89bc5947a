"""How one batch ended on each rank, and whether the ranks are still in step."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.errors import CollectiveError, DistError, WorkerError, summary_of
from aiodist.groups.group_engine import GroupEngine
from aiodist.wire.failures import decode_error, encode_error

GRACE_SECONDS = 0.1
"""How long the other ranks have to end a batch that has failed on one, before they are stopped."""


@dataclass(frozen=True)
class Outcome:
    """How a batch ended on ``rank``, after ``started`` collectives of the group in all."""

    rank: int
    started: int
    error: Exception | None = None
    results: Any = None

    def encode(self) -> list[Any]:
        """Return what travels to the leader: no results."""
        return [self.started, b"" if self.error is None else encode_error(self._travelling())]

    def _travelling(self) -> DistError:
        error = self.error
        assert error is not None  # `encode` has looked
        if isinstance(error, DistError) and type(error).__module__ == DistError.__module__:
            return error
        return WorkerError(
            f"the handler raised on rank {self.rank}: {summary_of(error)}",
            rank=self.rank,
            kind=type(error).__name__,
            traceback="".join(traceback.format_exception(error)),
        )

    @classmethod
    def decode(cls, rank: int, message: Sequence[Any]) -> Outcome:
        """Return the outcome that ``rank`` sent."""
        started, error = message
        return cls(rank, started, decode_error(error, rank) if error else None)


async def outcome_of(task: asyncio.Task[Any], rank: int, engine: GroupEngine) -> Outcome:
    """Wait for ``task``, the handler on this rank; return how it ended. It may be cancelled."""
    await asyncio.wait({task})
    if task.cancelled():
        text = f"the handler was cancelled on rank {rank}"
        return Outcome(rank, engine.n_started, WorkerError(text, rank=rank, kind="CancelledError"))
    error = task.exception()
    if error is None:
        return Outcome(rank, engine.n_started, results=task.result())
    if not isinstance(error, Exception):
        raise error
    return Outcome(rank, engine.n_started, error)


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and wait for its end."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio logs nothing


class Round:
    """One batch, which all ranks carry out: collects their outcomes. Lives on the leader.

    ``over``: done when all ranks have ended it, or the grace after the first error has passed; fails
    with the error of the group, or with what ends the service.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.mine: Outcome | None = None  # the leader's, with the results
        self._left = set(ranks)
        self._outcomes: list[Outcome] = []
        self._grace: asyncio.TimerHandle | None = None

    def ended(self, outcome: Outcome) -> None:
        """Note that one rank has ended the batch."""
        if outcome.rank not in self._left:
            return
        self._left.remove(outcome.rank)
        self._outcomes.append(outcome)
        if not self._left:
            self._finish()
        elif outcome.error is not None and self._grace is None:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(GRACE_SECONDS, self._finish)

    def fail(self, error: BaseException) -> None:
        """Note that the group, or the service on this rank, has ended."""
        if not self.over.done():
            self.over.set_exception(error)
            self.over.exception()  # asked for: a leader that still tells the workers never waits for it
        self.close()

    def close(self) -> None:
        """Give the timer back."""
        if self._grace is not None:
            self._grace.cancel()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        self.close()

    @property
    def in_step(self) -> bool:
        """Whether the next batch may begin in the same group.

        It may where all ranks have started equally many collectives, and all of them returned or all
        raised. Where only some raised, messages between the ranks may be left over.
        """
        failed = [outcome for outcome in self._outcomes if outcome.error is not None]
        return (
            not self._left
            and len({outcome.started for outcome in self._outcomes}) == 1
            and len(failed) in (0, len(self._outcomes))
        )

    @property
    def error(self) -> Exception | None:
        """The error for the callers: that of the rank that failed by itself, where one did.

        The other ranks' collectives fail because of it, with an error that says less. If the leader
        failed in the same way, it is the leader's own error, whichever rank was first.
        """
        errors = [outcome.error for outcome in self._outcomes if outcome.error is not None]
        own = [error for error in errors if not isinstance(error, CollectiveError)]
        first = next(iter(own or errors), None)
        kind = first.kind if isinstance(first, WorkerError) else type(first).__name__
        mine = None if self.mine is None else self.mine.error
        return mine if type(mine).__name__ == kind else first
