"""`ProcessGroup`: what a program holds of a group, with the operations as methods."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.api.group_operations import GroupOperations
from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.groups.succession import shrink


class ProcessGroup(GroupOperations):
    """Some of the world's ranks, in an order of their own.

    `rank` returns this process's number in the group, and `size` how many ranks it has, as in torch.
    ``ranks[i]`` is the global rank of group rank i.
    Operations on one group start in the same order on all its ranks; different groups are
    independent of each other.

    Each operation of ``aiodist`` that takes a ``group`` is a method with the same parameters, without
    that one: ``await group.all_reduce(x)`` is ``await aiodist.all_reduce(x, group=group)``.
    """

    __slots__ = ()

    def shrink(self, timeout: Timeout = None) -> Coroutine[Any, Any, ProcessGroup]:
        """Return a working group of those members that are left: await it. See `aiodist.shrink`.

        Args:
            timeout: Seconds or a timedelta; None is the group's timeout.

        Raises:
            InvalidUsageError: At the call, outside the event loop of the group.
        """
        return _handle_of_result(shrink(self._engine, timeout))


Group = ProcessGroup | NonGroupMember
"""What functions that make a group return."""


def handle_of(engine: GroupEngine) -> ProcessGroup:
    """Return the handle of ``engine``, always the same one."""
    handle = engine.handle
    if not isinstance(handle, ProcessGroup):
        handle = engine.handle = ProcessGroup(engine)
    return handle


async def _handle_of_result(successor: Coroutine[Any, Any, GroupEngine]) -> ProcessGroup:
    return handle_of(await successor)
