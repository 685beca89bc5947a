"""An operation asked for in one thread and run on the portal's loop in another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aiodist.groups.work import Work

Start = Callable[[], Sequence[Work[Any]]]
"""Starts one or several operations of the engine. Runs in the loop's thread."""


class Operation:
    """What one call of torch's asked for: one or several `Work` of the engine, as one.

    Nothing is raised where it is asked for: torch's C++ callers take an exception from there as
    a broken invariant. Errors, those of arguments too, come with `wait` and `error`.
    """

    __slots__ = (
        "_blocks",
        "_done",
        "_error",
        "_gate",
        "_left",
        "_loop",
        "_on_end",
        "_start",
        "_works",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: Start,
        blocks: bool,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """``blocks``: the caller does nothing but wait, so look for the end before sleeping.

        ``on_end()`` is called when it ends, before anybody who waits learns of it.
        """
        self._loop = loop
        self._start: Start | None = start
        self._blocks = blocks
        self._on_end = on_end
        self._works: Sequence[Work[Any]] = ()
        self._left = 0
        self._done = False
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def submit(self) -> None:
        """Have it started, after all that were submitted before."""
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError as error:  # the loop is closed
            self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """It cannot start; whoever waits for it gets ``error``."""
        error.__traceback__ = None  # it holds the tensors, and says nothing of the caller's code
        self._error = error
        self._finish()

    def _run(self) -> None:
        start, self._start = self._start, None
        assert start is not None
        try:
            works = start()
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            self.refuse(error)
            return
        self._works = works
        self._left = len(works)
        if not works:
            self._finish()
        for work in works:
            if self._blocks:
                work.spin()
            work.add_done_callback(self._one_less)

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            errors = [error for work in self._works if (error := work.exception()) is not None]
            self._error = errors[0] if errors else None
            self._finish()

    def _finish(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        self._done = True
        self._gate.release()

    # -- any thread

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """What it failed with; None while it runs."""
        return self._error if self._done else None

    @property
    def works(self) -> Sequence[Work[Any]]:
        """The engine's handles; none before it has started."""
        return self._works

    def block(self, seconds: float | None = None) -> None:
        """Wait for the end. After ``seconds`` the operation itself fails, on all its ranks."""
        if self._done:
            return
        if seconds is None:
            self._gate.acquire()
        elif not self._gate.acquire(timeout=seconds):
            self._call(self._expire, seconds)
            self._gate.acquire()
        self._gate.release()  # for the next that waits

    def wait(self, seconds: float | None = None) -> None:
        """`block`, and raise the error it ended with."""
        self.block(seconds)
        error = self._error
        if error is not None:
            try:
                raise error.with_traceback(None)
            finally:
                del error, self

    def cancel(self) -> None:
        """Give it up; a collective fails on all its ranks."""
        self._call(self._cancel)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass  # the loop is closed, and all its operations have ended

    def _expire(self, seconds: float) -> None:
        for work in self._works:
            work.expire(seconds)

    def _cancel(self) -> None:
        for work in self._works:
            work.cancel()


class Operations:
    """Several that were submitted one after the other, as one; the same methods."""

    __slots__ = ("_all",)

    def __init__(self, operations: Sequence[Operation | Operations]) -> None:
        self._all = operations

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(each.done for each in self._all)

    @property
    def error(self) -> BaseException | None:
        """The first error, once all have ended."""
        return next((e for each in self._all if (e := each.error)), None) if self.done else None

    @property
    def works(self) -> Sequence[Work[Any]]:
        """The engine's handles of all."""
        return [work for each in self._all for work in each.works]

    def block(self, seconds: float | None = None) -> None:
        """Wait for the end of all; ``seconds`` are for each."""
        for each in self._all:
            each.block(seconds)

    def wait(self, seconds: float | None = None) -> None:
        """`block`, and raise the first error."""
        self.block(seconds)
        for each in self._all:
            each.wait()

    def cancel(self) -> None:
        """Give all of them up."""
        for each in self._all:
            each.cancel()
