"""What a thread hands to the loop's thread, and waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
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


class CoroutineCall:
    """A coroutine on its way to the loop's thread, and its task there."""

    __slots__ = ("_coroutine", "_on_result", "_task", "ended", "error", "has_ended", "returned")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], on_result: Callable[[Any], None] | None
    ) -> None:
        """``on_result(result)`` is called in the loop's thread, before the caller learns of the result."""
        self._coroutine = coroutine
        self._on_result = on_result
        self._task: asyncio.Task[Any] | None = None
        self.returned: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def start(self) -> None:
        """Start the coroutine; the loop's thread calls this."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel the coroutine; the loop's thread calls this."""
        if self._task is not None:
            self._task.cancel()
        else:  # an interrupt came before `start` was handed over
            self._coroutine.close()
            self._release()

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.error = CancelledError() if task.cancelled() else task.exception()
        if self.error is None:
            self.returned = task.result()
            if self._on_result is not None:
                try:
                    self._on_result(self.returned)
                except BaseException as error:  # noqa: BLE001  # raised in the thread that called
                    self.error = error
        self._release()

    def _release(self) -> None:
        self.has_ended = True
        self.ended.release()
