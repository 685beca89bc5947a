"""Leave in order, and within a time that a silent rank cannot lengthen much."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

FLUSH_SECONDS = 5.0
"""Total seconds for the work under way when a rank leaves."""

LAST_SECONDS = 1.0
"""Seconds for each of two last steps, even if the flush has used up its time: to connect, and to
deliver the goodbye."""


class Departure:
    """The time budget of a leaving rank, which starts when it is created."""

    def __init__(self, seconds: float) -> None:
        """Start the budget. ``seconds``: for the work under way."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    def remaining(self) -> float:
        """Return the seconds that are left for the work under way."""
        return max(0.0, self._end - self._loop.time())

    async def finish(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Await ``tasks`` and cancel those that exceed the budget. If cancelled, cancel all of
        them.
        """
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=max(self.remaining(), LAST_SECONDS))
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, closing_streams: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Await ``closing_streams`` concurrently, and cut short those that exceed their time."""
        await self.finish([self._loop.create_task(each) for each in closing_streams])
