"""A thread with an event loop of its own, for what must not wait for the owner's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_JOIN_SECONDS = 2.0
_LOOK_SECONDS = 1.0
"""How often the thread looks whether its owner's loop still is."""


class Aside:
    """A daemon thread that runs one coroutine. ``start``, in the end ``close``."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``main()`` is awaited in the thread, and cancelled by ``close`` or with the owner's loop.

        The owner's is the running loop.
        """
        self._owner = asyncio.get_running_loop()
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._runs = threading.Event()
        self._ended: asyncio.Future[None] = self._owner.create_future()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """From the thread: call ``function`` in the owner's loop, if that still runs."""
        try:
            self._owner.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the owner's loop has ended: nobody is left to be told
            pass

    async def close(self) -> None:
        """Cancel ``main()``, and return when the thread has ended; 4 s at most. Idempotent."""
        if self._thread.ident is None:
            return
        self._runs.wait(_JOIN_SECONDS)  # it has just been started
        self._cancel()
        await asyncio.wait([self._ended], timeout=_JOIN_SECONDS)
        self._thread.join(_JOIN_SECONDS)  # nothing is left for it to do

    def _cancel(self) -> None:
        loop, task = self._loop, self._task
        if loop is None or task is None:
            return
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # it has ended
            pass

    # -- the thread

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._watched())
        finally:
            self._runs.set()
            self.tell(_resolve, self._ended)

    async def _watched(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = task = self._loop.create_task(self._main())
        self._runs.set()
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
            if self._owner.is_closed():
                task.cancel()
        if not task.cancelled():
            task.result()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
