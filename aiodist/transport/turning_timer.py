"""A timer that counts only the time in which its loop turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICKS = 10


class TurningTimer:
    """Call ``callback()`` once, when the loop has turned for ``seconds``.

    A loop that stands still, because the program computes in it, reads nothing: what it waits for may
    have come meanwhile. However long that takes, it counts as a tenth of ``seconds``.
    """

    __slots__ = ("_callback", "_loop", "_ticks", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._ticks = _TICKS
        self._timer = loop.call_later(seconds / _TICKS, self._tick, seconds / _TICKS)

    def cancel(self) -> None:
        """Do not call. Idempotent."""
        self._timer.cancel()

    def _tick(self, seconds: float) -> None:
        self._ticks -= 1
        if self._ticks:
            self._timer = self._loop.call_later(seconds, self._tick, seconds)
        else:
            self._callback()
