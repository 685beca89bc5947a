"""What `Work.get_future` returns: a future with the methods that torch's have."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

from aiodist.errors import InvalidUsageError

T = TypeVar("T")
S = TypeVar("S")


class WorkFuture(concurrent.futures.Future[T]):
    """A future of `concurrent.futures`, and ``wait``, ``value`` and ``then`` of ``torch.futures``."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``loop``: the one that completes it, whose thread cannot wait for it; None if there is none."""
        super().__init__()
        self._loop = loop

    def result(self, timeout: float | None = None) -> T:
        """Do as `wait`, for at most ``timeout`` seconds."""
        self._check_thread()
        try:
            return super().result(timeout)
        finally:
            del self  # else the error's traceback would hold this frame, and that the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return its error, None if it has a value. It blocks and refuses to as `result`."""
        self._check_thread()
        return super().exception(timeout)

    def wait(self) -> T:
        """Block until it is complete; its value, or its error raised.

        Raises InvalidUsageError in the thread of the loop that completes it.
        """
        try:
            return self.result()
        finally:
            del self  # as in result()

    def value(self) -> T:
        """Return its value or raise its error. Raises InvalidUsageError before it is complete."""
        if not self.done():
            raise InvalidUsageError("the future is not complete: wait() for it first")
        try:
            return self.result()
        finally:
            del self  # as in result()

    def _check_thread(self) -> None:
        """Raise InvalidUsageError if a wait for it would block the loop that completes it."""
        if self._loop is not None and asyncio._get_running_loop() is self._loop and not self.done():
            raise InvalidUsageError(
                "this would block the event loop that has to complete the future; "
                "await asyncio.wrap_future(future)"
            )

    def then(self, callback: Callable[[WorkFuture[T]], S]) -> WorkFuture[S]:
        """Return a future of what ``callback(this one, complete)`` returns or raises.

        It is called here and now where this one is complete; else in a thread of its own, so
        it may wait for other operations.
        """
        following: WorkFuture[S] = WorkFuture(self._loop)
        following.set_running_or_notify_cancel()

        def run() -> None:
            try:
                value = callback(self)
            except BaseException as error:  # noqa: BLE001  # the future's, as torch has it
                following.set_exception(error)
            else:
                following.set_result(value)

        def start(_: object) -> None:
            try:
                threading.Thread(target=run, name="aiodist-then", daemon=True).start()
            except RuntimeError as error:  # there are too many, or the interpreter ends
                following.set_exception(error)

        if self.done():
            run()
        else:
            self.add_done_callback(start)
        return following
