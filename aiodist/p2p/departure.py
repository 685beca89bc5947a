"""How a rank leaves: in order, and within a time that no silent rank can lengthen by much."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

FLUSH_SECONDS = 5.0
"""What is under way has this long in all, whatever it waits for, when a rank leaves."""

LAST_SECONDS = 1.0
"""What has to be said last has so long even where nothing is left of that: to be connected, and
then for the others to hear it."""


class Departure:
    """One rank's, from the moment it begins."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: for what is under way."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    def remaining(self) -> float:
        """Seconds that are left for what is under way."""
        return max(0.0, self._end - self._loop.time())

    async def finish(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Let ``tasks`` end; those that do not are cancelled. Cancelled itself, it cancels all."""
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=max(self.remaining(), LAST_SECONDS))
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, closing_streams: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Await ``closing_streams`` side by side; those that do not end in time are cut short."""
        await self.finish([self._loop.create_task(each) for each in closing_streams])
