"""Limits that count only the time in which their loop turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_TICKS = 10
"""The fewest ticks of a timer."""

_LONGEST = 1.0
"""The longest tick in seconds."""


class TurningTimer:
    """Call ``callback()`` once, when the loop has turned for ``seconds``.

    A loop that stands still, because the program computes in it, reads nothing: what it waits for may
    have come meanwhile. However long that takes, it counts as one tick.
    """

    __slots__ = ("_callback", "_left", "_loop", "_tick", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._tick = min(seconds / _TICKS, _LONGEST)
        self._left = seconds
        self._timer = loop.call_later(self._tick, self._on_tick)

    def cancel(self) -> None:
        """Do not call. Idempotent."""
        self._timer.cancel()

    def _on_tick(self) -> None:
        self._left -= self._tick
        # Less than half a tick is what sums of fractions lack.
        if self._left > self._tick / 2:
            self._timer = self._loop.call_later(self._tick, self._on_tick)
        else:
            self._callback()


class TurningClock:
    """Count the ``seconds`` in which a loop turns. However long it stands still, that is one second."""

    __slots__ = ("_loop", "_timer", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to count; call `stop` in the end."""
        self.seconds = 0.0
        self._loop = loop
        self._timer = loop.call_later(_LONGEST, self._on_tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _on_tick(self) -> None:
        self.seconds += _LONGEST
        self._timer = self._loop.call_later(_LONGEST, self._on_tick)


@asynccontextmanager
async def turning_timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the body once the loop has turned for ``seconds``."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = TurningTimer(loop, seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
