"""What the parts of a group know of the group and of its rank's world, which stand above them.

`GroupEngine` is a `GroupFacts`; `groups.world.World` is a `RankWorld`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiodist.collectives.rule_tables import Tables
from aiodist.completion import T
from aiodist.errors import DistError
from aiodist.groups.membership_events import Membership
from aiodist.observe.recorder import Recorder
from aiodist.p2p.endpoint import Endpoint
from aiodist.store import Store


class GroupFacts(Protocol):
    """The identity of a group, and where it lives."""

    id: int
    """Its number on the wire, equal on all its ranks."""
    group_name: str
    ranks: tuple[int, ...]
    """The global ranks of the members."""
    global_rank: int
    """This process's global rank."""
    world: RankWorld
    endpoint: Endpoint

    @property
    def end_is_known(self) -> bool: ...


class RankWorld(Protocol):
    """What a group and its backend use of the world of their rank: see `groups.world.World`."""

    rank: int
    size: int

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def its_loop(self) -> asyncio.AbstractEventLoop | None: ...

    def check_loop_runs(self) -> None: ...

    @property
    def endpoint(self) -> Endpoint: ...

    recorder: Recorder
    membership: Membership
    store: Store | None
    token: bytes
    newcomer_key: bytes
    table: bytes
    tables: Tables
    allow_pickle: bool

    @property
    def default(self) -> GroupFacts | None: ...

    def owns(self, group: GroupFacts) -> bool: ...

    def check_loop(self) -> None: ...

    def as_its_loop(self, function: Callable[..., T], *args: Any) -> T: ...

    def announce(
        self,
        group: GroupFacts,
        sequence: int,
        error: DistError,
        ranks: Sequence[int] | None = None,
    ) -> None: ...

    def on_close(
        self,
        callback: Callable[[], Awaitable[None]],
        in_child: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None: ...
