"""``_coalescing_manager``: several collectives started at once and waited for together."""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from aiodist.groups.handle import Group
from aiodist.groups.shm_collective import caller_overlaps
from aiodist.groups.work import Work


class CoalescingManager:
    """The operations that started in a ``with _coalescing_manager(...)``."""

    def __init__(self) -> None:
        self.works: list[Work[Any]] = []

    def append(self, work: Work[Any] | None) -> None:
        """Let `wait` wait for ``work``, too."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait until all have ended; raise the first error, by order of their start."""
        works, self.works = self.works, []
        wait_for_all(works)


def wait_for_all(works: Sequence[Work[Any]]) -> None:
    """Wait until all ``works`` have ended; raise the first error by their order."""
    errors: list[BaseException] = []
    for work in works:
        try:
            work.wait()
        except (Exception, CancelledError) as error:  # noqa: BLE001  # raised once none is under way
            errors.append(error)
    try:
        if errors:
            raise errors[0]
    finally:
        del errors  # else the error's traceback would hold this frame, and that the errors


_current: ContextVar[CoalescingManager | None] = ContextVar("aiodist_coalescing", default=None)


coalescing: Callable[[], CoalescingManager | None] = _current.get
"""Return the manager of the calling context; None outside of a block."""


def overlapped(
    start: Callable[[], Work[Any]], outputs: Sequence[Any] | None, async_op: bool
) -> Work[Any] | None:
    """Start an operation by ``start`` that runs while the caller does something else.

    Return its `Work` where ``async_op``. The manager of the calling context waits for it, too.
    ``outputs``: the tensors that a collective writes, for torch's futures; None for a message.
    """
    token = caller_overlaps.set(True)
    try:
        work = start()
    finally:
        caller_overlaps.reset(token)
    work._outputs = None if outputs is None else list(outputs)  # `start` has checked them
    manager = coalescing()
    if manager is not None:
        manager.append(work)
    return work if async_op else None


@contextlib.contextmanager
def _coalescing_manager(
    group: Group | None = None, device: Any | None = None, async_ops: bool = False
) -> Iterator[CoalescingManager]:
    """Start the collectives of the block at once, and wait for all of them at its end.

    With ``async_ops=True`` the block does not wait: call ``wait()`` of the `CoalescingManager`.
    ``group`` and ``device`` are torch's; the block may call operations on any group. A function that
    returns an object or a new tensor waits for it also in the block. Raises the first error by order of
    the calls, when all have ended.
    """
    manager = CoalescingManager()
    token = _current.set(manager)
    try:
        yield manager
    finally:
        _current.reset(token)
    if not async_ops:
        manager.wait()
