"""A thread with an event loop of its own, for what must not wait for the owner's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_JOIN_SECONDS = 2.0


class LoopThread:
    """A daemon thread that runs one coroutine. ``start``, in the end ``close`` or ``stop``."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``main()`` is awaited in the thread, and cancelled once, by whichever end comes first.

        The owner's loop is the running one. ``main`` looks now and then whether it `is_orphaned`.
        """
        self._owner = asyncio.get_running_loop()
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._runs = threading.Event()
        self._ended = asyncio.Event()
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    @property
    def is_orphaned(self) -> bool:
        """Whether the owner's loop was closed, so that nobody will end this."""
        return self._owner.is_closed()

    def start(self) -> None:
        self._thread.start()

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """From the thread: call ``function`` in the owner's loop, if that still runs."""
        with contextlib.suppress(RuntimeError):  # it has ended: nobody is left to be told
            self._owner.call_soon_threadsafe(function, *args)

    def ask(self, function: Callable[..., object], *args: object) -> bool:
        """Call ``function`` in the thread's loop, once it runs; False where that has ended."""
        self._runs.wait(_JOIN_SECONDS)  # it may just have been started
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def cancel(self) -> bool:
        """Have ``main()`` cancelled; False where it has ended."""
        return self._thread.ident is not None and self.ask(self._cancel)

    async def close(self) -> None:
        """Cancel ``main()``, and return when the thread has ended; 4 s at most. Idempotent."""
        if self.cancel():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_JOIN_SECONDS):
                    await self._ended.wait()
        self._join()  # nothing is left for it to do

    def stop(self) -> None:
        """As `close`, without the owner's loop."""
        self.cancel()
        self._join()

    def close_in_child(self) -> None:
        """In a forked child, which has no such thread: give back what its loop has open."""
        loop, self._loop = self._loop, None
        if loop is not None:
            for name in ("_ssock", "_csock", "_selector"):
                inherited = getattr(loop, name, None)
                if inherited is not None:
                    inherited.close()

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    # -- the thread

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._run())
        finally:
            self._runs.set()
            self.tell(self._ended.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._main())
        self._runs.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _cancel(self) -> None:
        # A second time would interrupt what it does at its end.
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()
