"""Complete torch's futures of aiodist's operations in order, in a separate thread."""

from __future__ import annotations

import queue
import threading
from typing import Any, NamedTuple

import torch

from aiodist.deadline import SIGNAL_SECONDS
from aiodist.torch_backend.submission import Operation, Operations


class _Item(NamedTuple):
    operation: Operation | Operations
    future: torch.futures.Future[Any]
    ordered: bool


class Completions:
    """Complete the futures of one group in the order of the requests.

    Callbacks of ``then()``, communication hooks among them, run in this object's thread. If the
    future is already complete, torch runs them in the thread that calls ``then()``. They may start
    collectives, and all ranks have to start these in one order. So `settle` lets a caller wait,
    before it starts its next collective, until all callbacks have run.

    ``level``: 0 for what is started outside of callbacks, 1 for what these start, and so on. Each
    level has its own thread, so a callback may wait for what it has started.

    The thread starts with the first future. It is a daemon: at the end of the process it may still
    wait for an operation.
    """

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ordered = 0
        self._closed = False

    def add(
        self, operation: Operation | Operations, future: torch.futures.Future[Any], ordered: bool
    ) -> None:
        """Set ``future`` to True once ``operation`` and all that were added before have ended.

        ``ordered``: `settle` waits for its callbacks.
        """
        item = _Item(operation, future, ordered)
        with self._changed:
            if not self._closed:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._live, name="aiodist-futures", daemon=True
                    )
                    thread.start()
                    self._thread = thread
                self._ordered += ordered
                self._queue.put(item)
                return
        operation.block()
        future.set_result(True)

    def settle(self) -> None:
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
            thread = self._thread
        self._queue.put(None)
        if join and thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _live(self) -> None:
        _here.level = self.level + 1
        while (item := self._queue.get()) is not None:
            item.operation.block()
            item.future.set_result(True)
            if item.ordered:
                with self._changed:
                    self._ordered -= 1
                    self._changed.notify_all()
            del item  # while it waits, nothing of the last one is held


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
