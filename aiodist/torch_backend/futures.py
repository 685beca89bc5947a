"""torch's futures of our operations, completed in a thread of their own and in order."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch

from aiodist.torch_backend.operation import Operation, Operations

_Item = tuple[Operation | Operations, "torch.futures.Future[Any]"]


class Completions:
    """Completes the futures of one group's operations, in the order in which they were asked for.

    Callbacks of ``then()``, communication hooks among them, run in this thread. They may start
    operations and wait for them: those have `Completions` of their own, with another ``path``, so
    no thread waits for itself; and since the order of completion is the same on all ranks, so is
    the order of what is started in callbacks.

    The thread starts with the first future. It is a daemon: at the end of the process it may
    still wait for an operation.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, operation: Operation | Operations, future: torch.futures.Future[Any]) -> None:
        """Set ``future``, to True, once ``operation`` and all that were added before have ended."""
        with self._lock:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._live, name="aiodist-futures", daemon=True
                    )
                    self._thread.start()
                self._queue.put((operation, future))
                return
        operation.block()
        future.set_result(True)

    def close(self) -> None:
        """End the thread after what was added. All operations have ended, or are about to."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def _live(self) -> None:
        _here.completions = self
        while (item := self._queue.get()) is not None:
            operation, future = item
            operation.block()
            future.set_result(True)
            del item, operation, future  # while it waits, nothing of the last one is held


_JOIN_SECONDS = 5.0

_here = threading.local()


def path_here() -> str:
    """By which callbacks the calling code was reached: empty outside of all."""
    completions: Completions | None = getattr(_here, "completions", None)
    return "" if completions is None else completions.path
