"""An operation of the native backend inside of another operation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aiodist.backends.algorithm_choice import ByMessages
from aiodist.backends.native import NativeBackend
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine


class _Group:
    """What the native backend needs of its group; an operation runs over a context that is there."""

    def __init__(self, group: GroupEngine, context: CollectiveContext) -> None:
        self.rank = group.rank
        self.size = group.size
        self.ranks = group.ranks
        self.world = group.world
        self.next_turn = group.next_turn
        self._context = context

    def collective(
        self,
        fingerprint: Fingerprint,
        body: Callable[[CollectiveContext], Coroutine[Any, Any, None]],
        timeout: float | None = None,
        *,
        shares: bool = False,
    ) -> Coroutine[Any, Any, None]:
        return body(self._context)


def native_within(group: GroupEngine, context: CollectiveContext) -> Any:
    """A native backend whose collectives are coroutines over ``context``: to be awaited once, at once.

    ``context`` brings the fingerprint, the timeout and the sequence number; it has no shared-memory
    context.
    """
    intra_host: Any = _Group(group, context)
    return NativeBackend(intra_host, ByMessages(group.world.tables.messages))
