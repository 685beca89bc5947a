"""What the parts of a group know of the group and of its rank's world, which stand above them.

`GroupEngine` is a `GroupFacts` and an `EndingGroup`; `groups.world.World` is a `RankWorld`.
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


class EndingGroup(GroupFacts, Protocol):
    """A group, as those see it that report its failures."""

    @property
    def is_told(self) -> bool:
        """Whether a revocation is no news."""


class RankWorld(Protocol):
    """What a group and its backend use of the world of their rank."""

    rank: int
    size: int

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def its_loop(self) -> asyncio.AbstractEventLoop | None:
        """As ``loop``, and None before the world has one."""

    def check_loop_runs(self) -> None:
        """Raise InvalidUsageError where this thread runs the loop, and not now."""

    @property
    def endpoint(self) -> Endpoint: ...

    recorder: Recorder
    membership: Membership
    store: Store | None
    token: bytes
    """From rank 0: the ranks know each other by it."""
    table: bytes
    """From rank 0: a file of measured choices; empty where there is no such file."""
    tables: Tables
    """The tables that algorithms are chosen by."""
    allow_pickle: bool
    """Whether objects may be pickled where an operation does not say."""

    @property
    def default(self) -> GroupFacts | None:
        """The default group."""

    def owns(self, group: GroupFacts) -> bool:
        """Return whether ``group`` is of the world as it is, and not from before it was destroyed."""

    def check_loop(self) -> None:
        """Raise InvalidUsageError outside the event loop of this world."""

    def as_its_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function(*args)`` where the loop of this world counts as running."""

    def announce(
        self,
        group: EndingGroup,
        sequence: int,
        error: DistError,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Tell ``ranks`` (the other members where None) that a collective failed, or the group."""

    def on_close(
        self,
        callback: Callable[[], Awaitable[None]],
        in_child: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Await ``callback()`` when the world closes; call ``in_child()`` in a forked child.

        ``is_over()``: whether both may be forgotten.
        """
