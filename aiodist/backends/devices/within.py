"""An operation of the native backend inside of another operation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aiodist.backends.native import NativeBackend
from aiodist.backends.ways import ByMessages
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.lines import CollectiveLine
from aiodist.groups.process_group import ProcessGroup


class _Group:
    """What the native backend needs of its group; an operation runs over a line that is there."""

    def __init__(self, group: ProcessGroup, line: CollectiveLine) -> None:
        self.own_rank = group.own_rank
        self.n_ranks = group.n_ranks
        self.world = group.world
        self.next_turn = group.next_turn
        self._line = line

    def collective(
        self,
        fingerprint: Fingerprint,
        body: Callable[[CollectiveLine], Coroutine[Any, Any, None]],
        timeout: float | None = None,
        *,
        shares: bool = False,
    ) -> Coroutine[Any, Any, None]:
        return body(self._line)


def native_within(group: ProcessGroup, line: CollectiveLine) -> Any:
    """A native backend whose collectives are coroutines over ``line``: to be awaited once, at once.

    ``line`` brings the fingerprint, the timeout and the sequence number; it has no board.
    """
    inside: Any = _Group(group, line)
    return NativeBackend(inside, ByMessages(group.world.tables.messages))
