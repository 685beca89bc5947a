"""Operations that are called outside the event loop of their world, and start in it later.

``asyncio.run_coroutine_threadsafe(dist.all_reduce(x), loop)`` calls the operation in a thread that has
no loop, and only then hands it to the loop. Such a `Work` starts when a task of that loop takes its
first step, or when a thread waits for it or asks whether it has ended. Operations take their sequence
numbers in the order in which they start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from aiodist.completion import T
from aiodist.deadline import to_seconds
from aiodist.errors import GroupClosedError
from aiodist.groups.collective_backend import Start
from aiodist.groups.never_awaited import call_site
from aiodist.groups.operation import Operation
from aiodist.groups.work import Work
from aiodist.observe.recorder import GroupLabel, Record, operation

if TYPE_CHECKING:
    from aiodist.groups.group_engine import GroupEngine


def start_anywhere(
    group: GroupEngine,
    operation: Operation[T],
    timeout: float | timedelta | None = None,
    begin: Start | None = None,
) -> Work[T]:
    """Start ``operation`` by `GroupEngine.start`. Outside the group's loop let that start it later."""
    world = group.world
    loop = world.its_loop
    # Without a loop the group is closed, and says so itself.
    if loop is None or loop is asyncio._get_running_loop():
        return group.start(operation, timeout, begin)
    if loop.is_closed():
        world.check_loop()
    later = partial(group.start, operation, to_seconds(timeout), begin)
    return DeferredWork(loop, group.label, operation.kind, later)


class DeferredWork(Work[T]):
    """An operation that starts once its outcome is wanted."""

    __slots__ = ("_begin", "_begun")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        group: GroupLabel,
        name: str,
        begin: Callable[[], Work[T]],
    ) -> None:
        """``begin()`` starts it; it is called once, on ``loop``."""
        super().__init__(loop, None, Record(-1, group, -1, (name, -1, -1, b"", -1), monotonic_ns()))
        self._site = call_site(3, loop.get_debug())
        self._begin: Callable[[], Work[T]] | None = begin
        self._begun: Work[T] | None = None

    def _start_soon(self) -> None:
        """Let the loop start it, unless it has started. Any thread."""
        if self._begin is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop was closed meanwhile
            self._start_failed(GroupClosedError("the event loop of this group has ended"))

    def _fail(self, error: BaseException) -> None:
        if self._begun is not None:
            self._begun._fail(error)
        elif self._begin is not None:
            self._start_failed(error)

    def _expire(self, seconds: float) -> None:
        if self._begun is not None:
            self._begun._expire(seconds)

    def _waiting_for(self) -> Sequence[int]:
        return () if self._begun is None else self._begun._waiting_for()

    def is_completed(self) -> bool:
        self._start_soon()  # a thread may ask again and again, and do nothing else
        return super().is_completed()

    def _when_done(self, callback: Callable[[], None]) -> None:
        super()._when_done(callback)
        self._start_soon()

    def __await__(self) -> Generator[Any, None, T]:
        self._start_here()
        return super().__await__()

    def send(self, value: Any) -> Any:
        self._start_here()
        try:
            return super().send(value)
        finally:
            del self  # as in result()

    def __repr__(self) -> str:
        if self._begin is not None:
            return f"<Work {operation(self._recorded).call}: starts when it is awaited>"
        return super().__repr__() if self._begun is None else repr(self._begun)

    # -- inside

    def _start_here(self) -> None:
        if asyncio._get_running_loop() is self._loop:  # in another loop the await raises
            self._start()

    def _start(self) -> None:
        begin, self._begin = self._begin, None
        if begin is None:
            return
        try:
            self._begun = begun = begin()
        except Exception as error:  # noqa: BLE001  # raised where its outcome is asked for
            self._settle(None, error)
            return

        def copy_outcome() -> None:
            self._source, self._unread = begun._source, begun._unread
            self._settle(begun._value, begun._error)

        begun._asked = True  # as this one has been
        begun._when_done(copy_outcome)

    def _mark_retrieved(self) -> None:
        super()._mark_retrieved()
        if self._begun is not None:
            self._begun._mark_retrieved()

    def _start_failed(self, error: BaseException) -> None:
        self._begin = None
        self._settle(None, error)
