"""Submit an operation in one thread and run it on the portal's loop in another."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from aiodist.deadline import acquire
from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.groups.work import Work
from aiodist.p2p.spin_policy import SHORTEST


class Several:
    """Works of the engine that were started one after the other, as one."""

    __slots__ = ("_left", "_works")

    def __init__(self, works: Sequence[Work[Any]]) -> None:
        self._works = works
        self._left = 0

    def _when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when all have ended. Once only, in the loop's thread."""
        if not self._works:
            callback()
            return
        self._left = len(self._works)

        def one_less() -> None:
            self._left -= 1
            if not self._left:
                callback()

        for work in self._works:
            work._when_done(one_less)

    def is_completed(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> None:
        """Raise the first error of all, which have ended."""
        for work in self._works:
            work.result()

    def _spin(self, longest: float = SHORTEST) -> bool:
        """Look for the end of each, as `Work._spin`. Returns whether all have ended."""
        return all(work._spin(longest) for work in self._works)

    def _sleeper(self) -> None:
        """Return None: the caller waits for `_when_done`."""
        return

    def _stay_awake(self) -> None:
        """Let the loop look for the end for a while before it sleeps."""
        for work in self._works:
            work._stay_awake()

    def exception(self) -> BaseException | None:
        """Return the first error of all."""
        errors = [error for work in self._works if (error := work.exception()) is not None]
        return errors[0] if errors else None

    def _expire(self, seconds: float) -> None:
        """Fail those that have not ended within ``seconds``."""
        for work in self._works:
            work._expire(seconds)

    def cancel(self) -> bool:
        """Cancel all of them. Returns False if all had completed."""
        return sum(work.cancel() for work in self._works) > 0


Started = Work[Any] | Several


def all_started(starting: Iterable[Work[Any]]) -> Started:
    """Return the works that ``starting`` starts one after the other, as one.

    If one is refused, cancel those that have started: no caller gets them.
    """
    works: list[Work[Any]] = []
    try:
        works.extend(starting)
    except BaseException:
        for work in works:
            work.cancel()
        raise
    return works[0] if len(works) == 1 else Several(works)


class Operation:
    """The operation of one torch call.

    The call raises nothing: torch's C++ callers take an exception there as a broken invariant.
    Errors, those of arguments too, come with `wait` and `error`.
    """

    __slots__ = ("_error", "_gate", "_on_end", "_post", "_start", "_work", "done")

    def __init__(
        self,
        post: Callable[[Callable[[], None]], None],
        start: Callable[[], Started] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """``start()`` runs in the loop's thread, see `submit`; ``post(function)`` brings it there.

        ``on_end()`` is called when it ends, before any waiter learns of it.
        """
        self._post = post
        self._start = start
        self._on_end = on_end
        self._work: Started | None = None
        self.done = False
        """Whether it has completed or failed."""
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def submit(self) -> None:
        """Start it in the loop's thread, after all that were submitted before."""
        try:
            self._post(self._run)
        except NotInitializedError as error:
            self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Complete the operation, which has ended or could not start; waiters get ``error``."""
        if error is not None:
            error.__traceback__ = None  # holds the tensors, and says nothing of the caller's code
        self._error = error
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        self.done = True
        self._gate.release()

    def _run(self) -> None:
        start, self._start = self._start, None
        assert start is not None
        try:
            self._work = work = start()
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            self.end(error)
            return
        work._when_done(lambda: self.end(work.exception()))

    # -- any thread

    @property
    def error(self) -> BaseException | None:
        """Return its error; None while it runs or after success."""
        return self._error if self.done else None

    def source_rank(self) -> int:
        """Return the global rank whose message a receive got. Raises InvalidUsageError for the others."""
        if not isinstance(self._work, Work):
            raise InvalidUsageError("source_rank() is for a receive that has finished")
        return self._work.source_rank()

    def block(self, seconds: float | None = None) -> None:
        """Wait for the end. After ``seconds`` the operation itself fails, on all its ranks."""
        if self.done:
            return
        limit = math.inf if seconds is None else seconds
        if not acquire(self._gate, limit):
            self._try(partial(self._expire, limit))
            acquire(self._gate)
        self._gate.release()  # for the next that waits

    def wait(self, seconds: float | None = None) -> None:
        """Wait as `block` does, and raise its error."""
        self.block(seconds)
        error = self._error
        if error is not None:
            try:
                raise error.with_traceback(None)
            finally:
                del error, self

    def cancel(self) -> None:
        """Cancel it; a collective fails on all its ranks."""
        self._try(self._cancel)

    def _try(self, function: Callable[[], None]) -> None:
        try:
            self._post(function)
        except NotInitializedError:
            pass  # all its operations have ended

    def _expire(self, seconds: float) -> None:
        if self._work is not None:
            self._work._expire(seconds)

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()


class Operations:
    """Several operations that were submitted one after the other, as one; the same methods."""

    __slots__ = ("_all",)

    def __init__(self, operations: Sequence[Operation | Operations]) -> None:
        self._all = operations

    @property
    def done(self) -> bool:
        """Return whether all have completed or failed."""
        return all(each.done for each in self._all)

    @property
    def error(self) -> BaseException | None:
        """Return the first error, once all have ended."""
        return next((e for each in self._all if (e := each.error)), None) if self.done else None

    def block(self, seconds: float | None = None) -> None:
        """Wait for the end of all; ``seconds`` are for each."""
        for each in self._all:
            each.block(seconds)

    def wait(self, seconds: float | None = None) -> None:
        """Wait as `block` does, and raise the first error."""
        self.block(seconds)
        for each in self._all:
            each.wait()

    def cancel(self) -> None:
        """Cancel all of them."""
        for each in self._all:
            each.cancel()
