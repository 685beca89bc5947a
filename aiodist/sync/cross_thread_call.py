"""A call that one thread hands to the loop's thread, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class CrossThreadCall:
    """One call from another thread, on its way to the loop's."""

    __slots__ = ("_blocks", "_function", "ended", "error", "returned")

    def __init__(self, function: Callable[[], Any], blocks: bool) -> None:
        self._function = function
        self._blocks = blocks
        self.returned: Any = None
        self.error: BaseException | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def start(self) -> None:
        """Start the function; the loop's thread calls this."""
        returned = self._begin()
        if returned is None or not self._blocks:
            self.ended.release()
            return
        returned._spin()
        if returned.is_completed():
            self.ended.release()
            return
        returned._stay_awake()
        returned._when_done(self.ended.release)

    def _begin(self) -> Any:
        """Call the function; return its result, or None if it raised."""
        try:
            self.returned = returned = self._function()
        except BaseException as error:  # noqa: BLE001  # raised in the thread that called
            traceback = error.__traceback__
            self.error = error.with_traceback(traceback and traceback.tb_next)  # without this frame
            return None
        return returned

    def cancel(self) -> None:
        """Cancel what the function has started; the loop's thread calls this."""
        works = self.returned if isinstance(self.returned, list) else [self.returned]
        for work in works:
            if work is not None:
                work.cancel()
