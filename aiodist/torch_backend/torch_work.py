"""The handle that torch's callers get for an operation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from aiodist.torch_backend import work_registry
from aiodist.torch_backend.devices import accelerators_of
from aiodist.torch_backend.futures import Completions, level_here
from aiodist.torch_backend.submission import Operation, Operations


class TorchWork(c10d.Work):
    """A ``torch.distributed.Work`` over an `Operation`."""

    def __init__(
        self,
        operation: Operation | Operations,
        tensors: Sequence[Any],
        completions: Completions | None,
        value: list[Any] | None = None,
    ) -> None:
        """``tensors``: what the operation writes.

        ``completions``: None for a message, which completes in no order with others. ``value``: of the
        future; None for ``tensors``.
        """
        super().__init__()
        self.operation = operation
        self.tensors = list(tensors)
        self._value = value or self.tensors
        self._completions = completions
        self._root: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._is_waited_for = False
        self.is_registered = False
        """Whether torch's registry has it (`work_registry`). It is removed there once it was waited for."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation ends. Returns True, or raises its error.

        The data is there then, on a GPU too: later work of the current stream comes after it. A
        host that has to move the bytes itself cannot make only the stream wait. After ``timeout``,
        if it is more than zero, the operation fails on all its ranks.

        The future of `get_future` is complete then, too, except in a callback of another future.
        """
        self.operation.block(timeout_seconds(timeout))
        self._is_waited_for = True
        if self._future is not None:
            self._complete(self._future)
        try:
            self.operation.wait()
        finally:
            if self.is_registered:
                self.is_registered = False  # first: removing it waits for it again
                work_registry.remove(self.tensors)
        return True

    def synchronize(self) -> None:
        """Wait until the data is there. The same as `wait`."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Return whether it has completed or failed."""
        return self.operation.done

    def is_success(self) -> bool:
        """Return whether it has completed without an error."""
        return self.operation.done and self.operation.error is None

    def exception(self) -> BaseException | None:
        """Return its error, or None."""
        return self.operation.error

    def result(self) -> list[Any]:
        """Wait, and return the tensors that it has written."""
        self.wait()
        return self.tensors

    def abort(self) -> None:
        """Cancel it; a collective fails on all its ranks."""
        self.operation.cancel()

    def source_rank(self) -> int:
        """Return the group rank whose message a receive got."""
        self.wait()
        return self._source()

    def _source_rank(self) -> int:
        return self.source_rank()

    def _source(self) -> int:
        raise RuntimeError("source_rank() is for a receive")

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a torch Future of the tensors; callbacks run in the thread that completes it.

        If Python code asks for it, the group's next collective in the same thread starts after the
        callbacks, because these may start collectives. Otherwise some ranks would start those
        first, and some the next one. DDP's own reducer asks from C++ and has no callbacks. An error
        is raised inside ``then``: ``set_exception`` on a future that C++ waits for ends the
        process.
        """
        return self.future(ordered=_called_from_python())

    def future(self, *, ordered: bool) -> torch.futures.Future[Any]:
        """Return the future of `get_future`; ``ordered``: the next collective waits for the callbacks."""
        if self._future is None:
            devices = accelerators_of(self.tensors)
            root: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
            operation, value = self.operation, self._value

            def outcome(_: Any) -> Any:
                if operation.error is not None:
                    raise operation.error.with_traceback(None)
                return value

            self._root = root
            self._future = root.then(outcome)
            if self._completions is not None:
                self._completions.add(operation, root, ordered=ordered)
            else:
                alone = Completions()
                alone.add(operation, root, ordered=False)
                alone.close(join=False)
        if self._is_waited_for:
            self._complete(self._future)
        return self._future

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        """Wait until the thread of futures has completed ``future``, whose operation has ended.

        A callback waits only for futures that a thread of a deeper level completes. The thread of its
        own level may have the callback in progress, so waiting for that one would never end.
        """
        if self._completions is None or level_here() <= self._completions.level:
            with contextlib.suppress(Exception):  # `wait` and the future's readers raise it
                future.wait()


class TorchReceive(TorchWork):
    """The handle of a receive, which knows its sender."""

    def __init__(
        self, operation: Operation, tensors: Sequence[Any], group_rank: Callable[[int], int]
    ) -> None:
        """``group_rank``: returns the group's number of a global rank."""
        super().__init__(operation, tensors, None)
        self._receive = operation
        self._group_rank = group_rank

    def _source(self) -> int:
        return self._group_rank(self._receive.source_rank())


def timeout_seconds(timeout: timedelta | None) -> float | None:
    """Return the seconds of a timeout that torch passes, or None for its default.

    Raises TypeError for anything but a timedelta, as torch's own works do.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise TypeError(
            f"timeout must be a timedelta, such as timedelta(seconds=5), not {timeout!r}"
        )
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None


def _called_from_python() -> bool:
    """Return whether Python code has called the method in which this is called.

    C++ has no frame. If C++ has called, the frame below the method's belongs to code that called
    into C++, and that code does not name the method.
    """
    method = sys._getframe(1)
    caller = method.f_back
    return caller is None or method.f_code.co_name in caller.f_code.co_names
