"""The engine's worlds of torch's groups: one per process, which its sub-groups share."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from aiodist.api import closing
from aiodist.api.lifecycle import init_process_group
from aiodist.backends.registry import make_group
from aiodist.errors import NotInitializedError
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import GroupSpec
from aiodist.groups.world import World, use_world
from aiodist.observe.answering import heed_signal
from aiodist.p2p.departure import FLUSH_SECONDS
from aiodist.sync.lifecycle import Member
from aiodist.sync.portal import portal, without_running_loop
from aiodist.types import Backend

T = TypeVar("T")

_running_loop = asyncio._get_running_loop


class TorchWorld:
    """A world of the engine, as torch's groups use it."""

    def __init__(self, world: World) -> None:
        """Wrap ``world``, which lives on the portal's loop, or soon will."""
        self._world = world
        self._closing: set[asyncio.Task[Any]] = set()
        self._context = contextvars.copy_context()
        self._context.run(use_world, world)
        self._portal = portal()
        self._is_released = False

    @classmethod
    def met(
        cls, store: Any, rank: int, size: int, timeout: timedelta | None, name: str
    ) -> TorchWorld:
        """Return a separate world for torch, of the ranks that meet at torch's ``store``.

        It is not that of ``aiodist.sync``. Errors: those of ``aiodist.init_process_group``.
        """
        own = World()
        made = cls(own)
        member = Member(own, store)
        made._portal.enter()
        try:
            where = Backend.AIODIST, None, timeout, size, rank, store, name
            with made._portal.opening(lambda _: member) as run:
                made._in_context(run, init_process_group, *where)
            heed_signal(own.observer)
        finally:
            made._portal.leave()
        return made

    def release(self) -> None:
        """Leave the world open on `close`: it has another owner."""
        self._is_released = True

    @property
    def is_open(self) -> bool:
        return self._world.is_initialized

    @property
    def whole(self) -> GroupEngine:
        """Return the group of all ranks."""
        return self._world.default_group()

    def subgroup(self, name: str, ranks: Sequence[int], timeout: float | None) -> GroupEngine:
        """Return a group of some ranks. All members call it equally often with equal arguments.

        They need not wait for each other: messages for a group that does not exist yet are kept.
        """

        async def make() -> GroupEngine:
            own = self._world.unused_name(f"{name}#")
            return make_group(self._world, GroupSpec(own, ranks, Backend(Backend.AIODIST), timeout))

        return self._run(make)

    def remove(self, groups: Sequence[GroupEngine], seconds: float = FLUSH_SECONDS) -> None:
        """Destroy groups, after ``seconds`` for operations in progress."""
        if self.is_open:
            self._run(closing.close_groups, self._world, groups, seconds)

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Close all groups and the connections, after ``seconds`` for operations in progress."""
        if self._is_released or not self.is_open:
            return
        try:
            self._run(closing.close_world, self._world, seconds)
            self._world.destroyed = True
        finally:
            self._portal.remove_user(Member(self._world))

    def begin_close(self, group: GroupEngine | None = None) -> None:
        """Begin to close ``group``, or, if None, all groups and the connections, without waiting.

        For finalizers: any thread, the loop's own too.
        """
        if group is None:
            if not self._is_released:
                self._portal.leave_soon(Member(self._world))
            return

        def close() -> None:
            task = asyncio.get_running_loop().create_task(
                closing.close_groups(self._world, [group])
            )
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        with contextlib.suppress(NotInitializedError):
            self.post(close)

    @property
    def can_block(self) -> bool:
        """Return whether the calling thread may use `complete`: no event loop runs in it."""
        return _running_loop() is None

    def post(self, function: Callable[[], None]) -> None:
        """Call ``function()`` in the loop's thread, after all earlier requests.

        Raises NotInitializedError if the loop is gone.
        """
        self._context.copy().run(self._portal.post, function)

    def complete(self, start: Callable[[], Any]) -> None:
        """Run the operation that ``start()`` returns to its end, in this thread if possible.

        Raises its error.
        """
        # A copy, because a context can be entered by one thread at a time.
        self._context.copy().run(self._portal.call, start, True)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await ``function(*args)`` on the portal's loop, with this world as the current one."""
        result: T = self._in_context(self._portal.run, function, *args)
        return result

    def _in_context(self, call: Callable[..., Any], *args: Any) -> Any:
        # Torch's calls block, in a coroutine too; the portal refuses that.
        with without_running_loop():
            return self._context.copy().run(call, *args)
