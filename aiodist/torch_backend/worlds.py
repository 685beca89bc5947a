"""Where torch's groups get their engine: one world a process, which its sub-groups share."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from aiodist.api import lifecycle
from aiodist.backends.registry import bind
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.world import World, use_world
from aiodist.sync.lifecycle import Member
from aiodist.sync.portal import portal
from aiodist.types import Backend

T = TypeVar("T")

_FLUSH_SECONDS = 5.0


class TorchWorld:
    """A world of the engine for torch's groups, apart from the one that ``aiodist.sync`` has."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta | None, name: str
    ) -> None:
        """Meet the others at torch's ``store``. Errors: those of ``aiodist.init_process_group``."""
        self._world = World()
        self._portal = portal()
        self._member = Member(self._world, store)
        self._portal.enter()
        try:
            self._run(
                lifecycle.init_process_group,
                Backend.AIODIST,
                None,
                timeout,
                size,
                rank,
                store,
                name,
            )
            self._portal.settle(self._member)
        finally:
            self._portal.leave()
        self.loop = self._world.loop

    @property
    def is_open(self) -> bool:
        return self._world.is_initialized

    @property
    def whole(self) -> ProcessGroup:
        """The group of all ranks."""
        return self._world.default_group()

    def subgroup(self, name: str, ranks: Sequence[int], timeout: float | None) -> ProcessGroup:
        """A group of some ranks. All members call it equally often with equal arguments.

        They need not wait for each other: what comes for a group that is not there yet is kept.
        """

        async def make() -> ProcessGroup:
            return self._add(self._world.unused_name(f"{name}#"), ranks, timeout)

        return self._run(make)

    def _add(self, name: str, ranks: Sequence[int], timeout: float | None) -> ProcessGroup:
        group = ProcessGroup(self._world, name, ranks, Backend(Backend.AIODIST), timeout)
        bind(group)
        self._world.add(group)
        return group

    def remove(self, groups: Sequence[ProcessGroup], seconds: float = _FLUSH_SECONDS) -> None:
        """Destroy groups, after ``seconds`` for what is under way."""
        if self.is_open:
            self._run(lifecycle.close_groups, self._world, groups, seconds)

    def close(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Close all groups and the connections, after ``seconds`` for what is under way."""
        if not self.is_open:
            return
        try:
            self._run(lifecycle.close_world, self._world, seconds)
        finally:
            self._portal.unsettle(self._member)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        def call() -> T:
            use_world(self._world)
            return self._portal.run(function, *args)

        # In a context of its own: the caller's keeps the world it has.
        return contextvars.copy_context().run(call)
