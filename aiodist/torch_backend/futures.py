"""Complete torch's futures of aiodist's operations in order, in a separate thread."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch

from aiodist.deadline import SIGNAL_SECONDS
from aiodist.torch_backend.submission import Operation, Operations
from aiodist.worker_thread import Worker


class Completions:
    """Complete the futures of one group in the order of the requests.

    Callbacks of ``then()``, communication hooks among them, run in this object's thread. If the
    future is already complete, torch runs them in the thread that calls ``then()``. They may start
    collectives, and all ranks have to start these in one order. So `wait_for_callbacks` lets a caller wait,
    before it starts its next collective, until all callbacks have run.

    ``level``: 0 for what is started outside of callbacks, 1 for what these start, and so on. Each
    level has its own thread, so a callback may wait for what it has started.

    The thread starts with the first future. It is a daemon: at the end of the process it may still
    wait for an operation.
    """

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self._worker = Worker("aiodist-futures")
        self._changed = threading.Condition()
        self._ordered = 0
        self._closed = False

    def add(
        self, operation: Operation | Operations, future: torch.futures.Future[Any], ordered: bool
    ) -> None:
        """Set ``future`` to True once ``operation`` and all that were added before have ended.

        ``ordered``: `wait_for_callbacks` waits for its callbacks.
        """
        with self._changed:
            if not self._closed:
                self._worker.put(partial(self._complete, operation, future, ordered))
                self._ordered += ordered
                return
        operation.block()
        future.set_result(True)

    def wait_for_callbacks(self) -> None:
        """Wait until callbacks of all futures that were added as ordered have run."""
        if self._ordered:
            with self._changed:
                while self._ordered:
                    self._changed.wait(SIGNAL_SECONDS)

    def close(self, *, join: bool = True) -> None:
        """End the thread after its present entries; ``join``: wait for that, some seconds at most."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._worker.close()
        if join:
            self._worker.join(_JOIN_SECONDS)

    def _complete(
        self, operation: Operation | Operations, future: torch.futures.Future[Any], ordered: bool
    ) -> None:
        _here.level = self.level + 1
        operation.block()
        future.set_result(True)
        if ordered:
            with self._changed:
                self._ordered -= 1
                self._changed.notify_all()


def completed_at_once() -> Completions:
    """Return an object that completes each future in the thread that asks for it, and starts none."""
    made = Completions()
    made.close()
    return made


_JOIN_SECONDS = 5.0

_here = threading.local()


def level_here() -> int:
    """Return how deep in callbacks the calling thread is: 0 outside of all."""
    level: int = getattr(_here, "level", 0)
    return level
