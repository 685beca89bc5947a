"""A thread that does one thing after the other, for calls that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Worker:
    """Runs jobs in the order in which they were put, in a daemon thread that the first one starts.

    A pool of `concurrent.futures` would keep the interpreter from ending while a call waits for a
    rank that never comes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> None:
        """Run ``job()``, which raises nothing, after all that was put before.

        The caller makes sure that one thread puts at a time. Raises RuntimeError if no thread can start.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._live, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after what is put already. Does not wait; nothing is put afterwards."""
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, at most ``seconds``; not in the thread itself."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def is_alive(self) -> bool:
        """Whether the thread still runs, as it does after `close` until its job is done."""
        return self._thread is not None and self._thread.is_alive()

    def _live(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds tensors, and the next may be long in coming
