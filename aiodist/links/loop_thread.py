"""A thread with its own event loop, for work that must not wait for the owner's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_JOIN_SECONDS = 2.0


class LoopThread:
    """A daemon thread that runs one coroutine. Call ``start``, and in the end ``close`` or ``stop``."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Prepare the thread; the running loop is the owner's loop.

        ``main()`` is awaited in the thread and cancelled once, by the first of `close`, `stop` and
        `cancel`. It must check `is_orphaned` from time to time.
        """
        self._owner = asyncio.get_running_loop()
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._runs = threading.Event()
        self._ended = asyncio.Event()
        self._is_cancelled = False
        self.failure: Exception | None = None
        """What ended the thread early: an error of ``main()``, or one that kept it from starting."""
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    @property
    def is_orphaned(self) -> bool:
        """Whether the owner's loop is closed, so that the owner will not end this thread."""
        return self._owner.is_closed()

    def start(self) -> None:
        """Start the thread. If the system refuses it, the thread has ended, by that ``failure``."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self.failure = error
            self._runs.set()
            self._ended.set()

    async def wait_for(self, told: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait until ``told`` is done, the thread has ended or could not start, or ``seconds`` are over."""
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            either = {told, ended}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in the owner's loop, if it still runs. For use in the thread."""
        with contextlib.suppress(RuntimeError):  # the owner's loop has ended
            self._owner.call_soon_threadsafe(function, *args)

    def ask(self, function: Callable[..., object], *args: object) -> bool:
        """Call ``function`` in the thread's loop, once it runs. Returns False if it has ended."""
        self._runs.wait(_JOIN_SECONDS)  # the thread may have only just been started
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def cancel(self) -> bool:
        """Cancel ``main()``. Returns False if it has ended."""
        return self._thread.ident is not None and self.ask(self._cancel)

    async def close(self) -> None:
        """Cancel ``main()``, and return when the thread has ended, within 4 s. Idempotent."""
        if self.cancel():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_JOIN_SECONDS):
                    await self._ended.wait()
        self._join()  # nothing is left for it to do

    def stop(self) -> None:
        """End the thread without the owner's loop. See `close`."""
        self.cancel()
        self._join()

    def close_in_child(self) -> None:
        """Close what the thread's loop has open, in a forked child, which has no such thread."""
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
        except Exception as error:
            self.failure = error
            if self._task is not None:  # an error of ``main()``, which is shown with its traceback
                raise
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
        # A second cancellation would interrupt the clean-up of ``main()``.
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()
