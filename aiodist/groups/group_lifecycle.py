"""The members of a group, and what ends it: a lost member, a revocation, an abort, its destruction."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from aiodist.deadline import SIGNAL_SECONDS, to_seconds
from aiodist.errors import (
    DistError,
    GroupClosedError,
    GroupRevokedError,
    InvalidUsageError,
    PeerLostError,
)
from aiodist.groups.naming import group_id, neighbours
from aiodist.observe.recorder import GroupLabel
from aiodist.types import Backend

if TYPE_CHECKING:
    from aiodist.groups.collective_backend import CollectiveBackend
    from aiodist.groups.group_facts import RankWorld
    from aiodist.p2p.endpoint import Endpoint

WHOLE_GROUP = -1
"""In place of a sequence number: a failure that ends the group."""


class Newcomer(NamedTuple):
    """A process that waits to be taken in.

    ``name``: random, its own. ``proof``: that it knows the job's secret.
    """

    rank: int
    rank_info: bytes
    name: bytes
    proof: bytes


class GroupSpec(NamedTuple):
    """The arguments of a new group."""

    name: str
    ranks: Sequence[int]
    """The global ranks of the members in the group's order, this process's among them."""
    backend: Backend
    timeout: float | None
    """The seconds of each operation."""
    options: Any = None
    """``pg_options``: torch's own options of a torch group."""
    device: Any = None
    """``device_id``: this rank's GPU."""
    lineage: Sequence[int] = ()
    """The members and those that were lost since, in the group's order; empty: the members."""
    newcomers: Sequence[int] = ()
    """Members that `grow` took in with this group."""
    generation: int = 0
    """How many groups this one follows on."""


class GroupLifecycle(ABC):
    """The part of a `GroupEngine` that its operations do not change: its members, and its end."""

    backend: CollectiveBackend

    bind_successor: Callable[[Self], None]
    """Gives the group that follows on this one its backend."""

    register_successor: Callable[[Self, Self], None]
    """Adds the group that follows on this one, the first argument, to the world. Set by `World.add`."""

    def __init__(self, world: RankWorld, spec: GroupSpec) -> None:
        self.world = world
        self.spec = spec
        self.endpoint: Endpoint = world.endpoint
        self.group_name = spec.name
        self.ranks = tuple(spec.ranks)
        self.id = group_id(spec.name, self.ranks)
        self.label = GroupLabel(self.id, spec.name, self.ranks)
        self.global_rank = world.rank
        self.rank = self.ranks.index(world.rank)
        self.size = len(self.ranks)
        self.backend_name = spec.backend
        self.set_timeout(math.inf if spec.timeout is None else spec.timeout)
        self.handle: object = None
        """What the program holds of this group."""
        self.lineage = tuple(spec.lineage) or self.ranks
        self.newcomers = tuple(spec.newcomers)
        self.unwelcomed: Sequence[Newcomer] | None = None
        """The newcomers while `grow` has not returned, which may be cancelled and called again."""
        self.generation = spec.generation
        self.made_by: tuple[int, int] | None = None
        """The group and the number of the collective that has made it, where one has."""
        self._numbers = {global_rank: number for number, global_rank in enumerate(self.ranks)}
        self._error: DistError | None = None
        self.why_aborted = ""
        """What ended it on this rank, in parentheses behind a space; empty if that is not known."""
        self.is_broken = False
        """Whether a collective failed that the backend cannot take back."""
        self._revoked = False
        self.successor: Self | None = None
        """The group that its members went on in, once `shrink` or `grow` has made it."""

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set the limit of later operations that give none of their own; ``math.inf`` is no limit.

        Raises TypeError and InvalidUsageError for a wrong value.
        """
        if timeout is None:
            raise TypeError(
                "timeout must be a number of seconds or a timedelta; math.inf is no limit"
            )
        seconds = to_seconds(timeout)
        self.timeout = None if seconds == math.inf else seconds

    # -- numbers

    def group_rank(self, global_rank: int) -> int:
        """Return this group's number of a global rank. Raises InvalidUsageError for a rank outside."""
        try:
            return self._numbers[global_rank]
        except (KeyError, TypeError):
            raise InvalidUsageError(
                f"rank {global_rank!r} is not in group {self.group_name!r}, whose ranks are "
                f"{list(self.ranks)}"
            ) from None

    # -- what ends it without being asked

    def _break(self, error: DistError, *, from_peer: bool) -> None:
        """End the group: a collective failed that the backend cannot take back.

        ``from_peer``: another member said so.
        """
        self.is_broken = True
        if self._error is not None:
            return
        text = (
            f"group {self.group_name!r} cannot go on, since backend {self.backend.name!r} cannot "
            f"call back what it has begun when an operation fails ({error}); "
        )
        if not self.backend.why_fixed:
            text += "shrink() gives a group to go on with"
            rank = getattr(error, "rank", -1)
            revoked = GroupRevokedError(text, group=self.group_name, rank=rank)
            self._revoke(revoked, from_peer=from_peer)
            return
        text += "start anew with destroy_process_group() and init_process_group()"
        broken = GroupClosedError(text, group=self.group_name)
        self._error = broken
        self._mark_failures_known()
        self._fail_all(broken)

    def peer_lost(self, error: PeerLostError, *, from_peer: bool = False) -> None:
        """End the group: a member is gone. All that is under way or comes later fails on all members.

        ``from_peer``: another member said so; a rank notices only the end of those it has talked to.
        """
        if self._error is None:
            self._end(error, from_peer)

    def _end(self, error: PeerLostError | GroupRevokedError, from_peer: bool) -> None:
        self._error = error.again()
        self._spread(error, from_peer)
        self._mark_failures_known()
        self._fail_all(error)

    def _spread(self, error: DistError, from_peer: bool) -> None:
        """Tell the members what has ended the group.

        The rank that noticed it tells all, and may die half way. So each rank that hears of it tells
        the ranks at distances 1, 2, 4 and so on, both ways round: all learn it unless these die, too.
        This is the binomial graph of Bosilca et al., "Failure detection and propagation in HPC
        systems", SC 2016.
        """
        ranks = neighbours(self.rank, self.size) if from_peer else range(self.size)
        others = [self.ranks[number] for number in ranks if number != self.rank]
        self.world.announce(self, WHOLE_GROUP, error, others)

    # -- ending the group on purpose

    def revoke(self) -> None:
        """End the group on all its ranks: `GroupHandle.revoke`."""
        here = self.global_rank
        text = (
            f"rank {here} revoked group {self.group_name!r}; shrink() gives a group to go on with"
        )
        error = GroupRevokedError(text, group=self.group_name, rank=here)
        self._in_loop(partial(self._revoke, error, from_peer=False))

    def abort(self, why: str = "") -> None:
        """End the group now, without flushing: `GroupHandle.abort`. Errors on all ranks say ``why``."""
        self._in_loop(partial(self._abort, why))

    def _abort(self, why: str) -> None:
        if isinstance(self._error, GroupClosedError):
            return
        here = self.global_rank
        self.why_aborted = f" ({why})" if why else ""
        text = f"rank {here} aborted group {self.group_name!r}{self.why_aborted}"
        self.close(GroupClosedError(f"{text}; make a new one", group=self.group_name, rank=here))
        told = f"{text}; shrink() gives a group to go on with"
        self._revoke(GroupRevokedError(told, group=self.group_name, rank=here), from_peer=False)

    def _revoke(self, error: GroupRevokedError, *, from_peer: bool) -> None:
        if self._revoked:
            return
        self._revoked = True
        if self._error is None:
            self._end(error, from_peer)
        else:
            self._spread(error, from_peer)

    def _in_loop(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop's thread, now; in another thread wait until that is done.

        A loop that does not run calls it when it runs again, and this does not wait. Do nothing
        where the world has ended, or is another one by now.
        """
        if not self.world.owns(self):
            return
        loop = self.world.loop
        if asyncio._get_running_loop() is loop:
            act()
            return
        done = threading.Event()

        def there() -> None:
            try:
                act()
            finally:
                done.set()

        with suppress(RuntimeError):  # the loop is closed: so is the group
            loop.call_soon_threadsafe(there)
        # A loop that ends at this moment, or stands between two calls of a Runner, calls nothing now.
        while loop.is_running() and not done.wait(SIGNAL_SECONDS):
            pass

    def close(self, error: GroupClosedError) -> None:
        """Fail what is under way and what comes later: the group is destroyed or aborted."""
        if not isinstance(self._error, GroupClosedError):
            self._error = error
        self._fail_all(error)
        self.backend.close()

    def check_open(self) -> None:
        """Raise what has ended the group, if it has ended."""
        if self._error is not None:
            raise self._error.again()

    def succeeded_by(self, successor: Self) -> None:
        """Fail what is under way: the members go on in ``successor``."""
        self.successor = successor
        text = f"group {self.group_name!r} was replaced by {successor.group_name!r}; use that"
        error = GroupRevokedError(text, group=self.group_name, rank=self.global_rank)
        self._error = error
        self._mark_failures_known()
        self._fail_all(error)
        self.backend.close()
        self.endpoint.inbox.forget_group(self.id)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and all operations fail."""
        return self._error is not None

    @property
    def end_is_known(self) -> bool:
        """Whether a revocation is no news: a lost member has ended the group, or it has a successor."""
        return self.successor is not None or isinstance(self._error, PeerLostError)

    @property
    def is_closed(self) -> bool:
        """Whether it was destroyed or aborted here, or broke beyond repair."""
        return isinstance(self._error, GroupClosedError)

    def check_may_go_on(self) -> None:
        """Raise GroupClosedError if it is closed, PeerLostError if the others gave up this very rank.

        A group that lost another member, or was revoked, passes. Raises InvalidUsageError where its
        backend needs the ranks to stay as they are.
        """
        if self.backend.why_fixed:
            raise InvalidUsageError(
                f"the ranks of group {self.group_name!r} cannot change: {self.backend.why_fixed}"
            )
        given_up = isinstance(self._error, PeerLostError) and self._error.rank == self.global_rank
        if self.is_closed or given_up:
            self.check_open()

    @abstractmethod
    def _fail_all(self, error: DistError) -> None:
        """Fail every operation under way."""

    @abstractmethod
    def _mark_failures_known(self) -> None:
        """Tell no member that what is under way has ended: the end of the group tells them."""

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.size}"
        return f"<ProcessGroup {self.group_name!r}: {place}, {self.backend_name}>"
