"""One rank's world: its endpoint, its groups, and the loop it lives on."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from copy import copy
from functools import partial
from threading import get_ident
from time import monotonic, sleep
from typing import Any, NamedTuple

from aiodist.collectives.rule_tables import OURS, decode
from aiodist.completion import T
from aiodist.errors import (
    DistError,
    GroupClosedError,
    GroupRevokedError,
    InvalidUsageError,
    NotInitializedError,
    PeerLostError,
)
from aiodist.groups.deferred import start_anywhere
from aiodist.groups.diagnostics import describe_activity, describe_present, explained
from aiodist.groups.group_agreements import refuse
from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.groups.group_facts import GroupFacts
from aiodist.groups.handle import Group
from aiodist.groups.host_placement import place
from aiodist.groups.membership_events import Membership
from aiodist.groups.work import Work
from aiodist.links.forks import close_in_children
from aiodist.links.losses import own_loss
from aiodist.observe.observer import Observer
from aiodist.observe.recorder import Recorder, size_from
from aiodist.p2p.departure import FLUSH_SECONDS
from aiodist.p2p.endpoint import Endpoint
from aiodist.p2p.endpoint_events import StatusAnswer
from aiodist.store import Store
from aiodist.wire.failures import decode_error, encode_error
from aiodist.wire.frames import COLLECTIVE, Frame, Key

# None where no loop runs, and no exception made for it; exported by asyncio.events.
_running_loop = asyncio._get_running_loop

log = logging.getLogger("aiodist")

_START_SECONDS = 0.1
"""How long a thread that was just started may take until it runs the loop."""


class _AtClose(NamedTuple):
    """The arguments of one call of `World.on_close`."""

    callback: Callable[[], Awaitable[None]]
    in_child: Callable[[], None]
    is_over: Callable[[], bool]


class World:
    """All that one rank has. Empty until ``init_process_group`` fills it.

    Belongs to the event loop that filled it and to the process: a forked child finds it empty.
    """

    def __init__(self) -> None:
        self.rank = -1
        self.size = -1
        self.default: GroupEngine | None = None
        self.store: Store | None = None
        self.launchers_store: Store | None = None  # where replacements of lost ranks come to
        self.token = b""  # from rank 0: with the job's secret, what ranks know each other by
        self.newcomer_key = (
            b""  # made of the job's secret: newcomers prove by it that they know that
        )
        self.table = b""  # from rank 0: a file of measured choices, or none
        self.tables = OURS  # what algorithms are chosen by: that file's rows, before our own
        self.recorder = Recorder()
        self.observer: Observer | None = None
        self.its_loop: asyncio.AbstractEventLoop | None = None  # which its operations belong to
        self.its_thread = 0  # that ran the loop when the world was opened
        self._endpoint: Endpoint | None = None
        self._groups: dict[int, GroupEngine] = {}
        self._closed: set[int] = set()
        self._replaced: dict[int, tuple[int, ...]] = {}  # by group: which it follows on, in order
        self._early: dict[int, list[tuple[int, DistError]]] = {}  # failures in groups to come
        self._early_agreements: dict[int, list[tuple[int, int, bytes]]] = {}
        self._early_fingerprints: dict[int, dict[int, tuple[int, bytes]]] = {}  # by group and rank
        self._names: dict[str, int] = {}
        self._incarnations: dict[int, int] = {}  # how often each group has been made.
        self.allow_pickle = False  # of objects, where an operation does not say.
        self.opening = False  # init_process_group is under way
        self.destroyed = False  # its user has closed it, and made no new one since
        self.is_child = False  # of a process that had one when it forked, and has made none since
        self._on_close: list[_AtClose] = []
        self.membership = Membership()
        self.extras: dict[type, Any] = {}  # by class: what layers above keep until the world closes

    # -- life

    def open(self, rank: int, size: int, store: Store | None) -> None:
        """Take a place among ``size`` ranks; the endpoint and the default group follow.

        Raises InvalidUsageError for an invalid AIODIST_RECORDER_SIZE.
        """
        self.recorder = Recorder(size_from(os.environ))
        self.destroyed = self.is_child = False
        self.rank = rank
        self.size = size
        self.store = store
        self.its_loop = asyncio.get_running_loop()
        self.its_thread = get_ident()
        close_in_children(self)

    def choose_by(self, table: bytes) -> None:
        """Choose algorithms by rank 0's ``table``, as all ranks do; by our own where it is empty.

        Raises InvalidUsageError for an invalid table.
        """
        self.table = table
        self.tables = decode(table) if table else OURS

    def attach(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def on_close(
        self,
        callback: Callable[[], Awaitable[None]],
        in_child: Callable[[], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Await ``callback()`` when the world closes, after the endpoint.

        In a forked child ``in_child()`` gives back what the child inherited. It is also called, without
        a loop, where the world's own loop has ended. ``is_over()``: whether neither is needed any more;
        both are then forgotten at the next call of this method.
        """
        self._on_close = [each for each in self._on_close if not each.is_over()]
        self._on_close.append(_AtClose(callback, in_child, is_over))

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Close the connections, flushing them for ``seconds`` at most, and be empty again.

        A group that is left, such as one that was made while the others were closed, is closed first.
        """
        async with AsyncExitStack() as stack:  # each is called, also if one before it fails
            for each in reversed(self._on_close):
                stack.push_async_callback(each.callback)
            if self._endpoint is not None:
                stack.push_async_callback(self._endpoint.close, seconds)
            stack.callback(self.clear)
            for group in self.groups:
                stack.callback(self.remove, group)

    def close_in_child(self) -> None:
        """Become empty in a forked child, and close its sockets. The parent's streams go on."""
        for group in self.groups:
            group.abandon(NotInitializedError(_CHILD), calls_back=False)
        if self._endpoint is not None:
            self._endpoint.close_in_child()
        for each in self._on_close:
            each.in_child()
        destroyed, is_child = self.destroyed, self.is_child or self.its_loop is not None
        self.clear()
        self.destroyed, self.is_child = destroyed, is_child

    def abandon_if_orphaned(self) -> bool:
        """Become empty if the event loop of the world has ended. Returns whether it has.

        This rank sent no goodbye: to the other ranks it has died.
        """
        if self.its_loop is None or not self.its_loop.is_closed():
            return False
        for group in self.groups:
            group.abandon(InvalidUsageError(_LOOP_ENDED), calls_back=True)
        try:
            if self._endpoint is not None:
                self._endpoint.abandon()
            for each in self._on_close:
                each.in_child()
        finally:
            self.clear()
        return True

    def clear(self) -> None:
        """Become empty again, as before ``open``."""
        if self.observer is not None:
            self.observer.close()
        self.membership.end()
        self.__init__()  # type: ignore[misc]  # one list of what empty means

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self.its_loop is None:
            raise self._not_there()
        return self.its_loop

    @property
    def endpoint(self) -> Endpoint:
        if self._endpoint is None:
            raise self._not_there()
        return self._endpoint

    @property
    def may_stand_still(self) -> bool:
        """Whether all that this world has for the loop to do can wait for some moments."""
        endpoint = self._endpoint
        if endpoint is None or endpoint.shares_process:
            return False
        # A copy: any thread may ask.
        return not any(group.is_busy for group in self.groups)

    @property
    def is_initialized(self) -> bool:
        return self.default is not None

    # -- groups

    def add(self, group: GroupEngine) -> None:
        if group.id in self._groups:
            raise InvalidUsageError(f"a group {group.group_name!r} of these ranks exists already")
        self._closed.discard(group.id)
        incarnation = self._incarnations[group.id] = self._incarnations.get(group.id, 0) + 1
        if self._endpoint is not None and group.size > 1:
            place(group, self._endpoint, incarnation)
        self._groups[group.id] = group
        group.register_successor = self._replace
        for sequence, error in self._early.pop(group.id, ()):
            group.failed_elsewhere(sequence, error)
        for src, number, message in self._early_agreements.pop(group.id, ()):
            group.agreements.received(src, number, message)
        for src, (sequence, fingerprint) in self._early_fingerprints.pop(group.id, {}).items():
            group.fingerprint_arrived(sequence, src, fingerprint)

    def _replace(self, group: GroupEngine, successor: GroupEngine) -> None:
        self.add(successor)
        if self.default is group:
            self.default = successor
        # All members of a group have left those behind that it follows on. A rank that they took for
        # dead may still ask about the agreement by which they went on without it.
        earlier = (*self._replaced.pop(group.id, ()), group.id)
        self._replaced[successor.id] = earlier[-MAX_REPLACED:]
        for forgotten in earlier[:-MAX_REPLACED]:
            self._groups.pop(forgotten, None)
            self._closed.add(forgotten)

    def remove(self, group: GroupEngine) -> None:
        if not self.owns(group):
            return  # it ended with an earlier world, and this one may have a group of its id
        group.close(
            GroupClosedError(
                f"group {group.group_name!r} was destroyed; make a new one", group=group.group_name
            )
        )
        if group.successor is None:  # else it still answers, until `_replace` forgets it
            self._groups.pop(group.id, None)
            self._closed.add(group.id)
        if self._endpoint is not None:
            self._endpoint.inbox.forget_group(group.id)

    def never_make(self, group: int) -> None:
        """Take no part in ``group``, which this rank failed to make, and others may have made."""
        self._early.pop(group, None)
        self._early_fingerprints.pop(group, None)
        self._closed.add(group)
        if self._endpoint is not None:
            self._endpoint.inbox.forget_group(group)
            for src, number, message in self._early_agreements.pop(group, ()):
                refuse(self._endpoint, src, group, number, message)

    @property
    def groups(self) -> Sequence[GroupEngine]:
        return list(self._groups.values())

    def under_way(self) -> list[Work[Any]]:
        """Return the operations of all groups that have not ended. Any thread."""
        return [work for group in self.groups for work in group.under_way()]

    def unused_name(self, stem: str) -> str:
        """Return a name for a new group; equal on ranks that make equal groups in the same order."""
        generation = 0 if self.default is None else self.default.generation
        if generation:  # newcomers have made none of the names of before
            stem = f"{stem}{generation}."
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        return f"{stem}{number}"

    def default_group(self) -> GroupEngine:
        if self.default is None:
            raise self._not_there()
        return self.default

    def _not_there(self) -> NotInitializedError:
        if self.is_child:
            return NotInitializedError(_CHILD)
        return NotInitializedError(_DESTROYED if self.destroyed else _NO_INIT)

    def find(self, group: Group | None) -> GroupEngine | NonGroupMember:
        """Return ``group``, or the default one where None; for questions about it.

        Raises NotInitializedError, InvalidUsageError for another world's group, and TypeError.
        """
        if group is None:
            return self.default_group()
        if isinstance(group, NonGroupMember):
            return group
        chosen = getattr(group, "_engine", None)  # groups of the torch backend have one as well
        if not isinstance(chosen, GroupEngine):
            raise TypeError(f"group must be a ProcessGroup of aiodist, not {type(group).__name__}")
        is_stale = self._endpoint is not None and not self.owns(chosen)
        if chosen.world is not self or (is_stale and not chosen.is_closed):  # a closed one says so
            raise InvalidUsageError(
                f"group {chosen.group_name!r} was made by another rank of this process, by torch's own "
                "init_process_group(), or before destroy_process_group(); make a new one"
            )
        return chosen

    def find_for_operation(self, group: Group | None) -> GroupEngine | NonGroupMember:
        """Do as `find`. If this world has ended, raise what has ended the group."""
        chosen = self.find(group)
        if self._endpoint is None and not isinstance(chosen, NonGroupMember):
            chosen.check_open()
        return chosen

    def owns(self, group: GroupFacts) -> bool:
        """Return whether ``group`` is of this world as it is, and not as it was before `clear`."""
        return group.world is self and group.endpoint is self._endpoint

    def group(self, group: Group | None) -> GroupEngine:
        """Return the `member` that starts operations of the backend.

        Outside the world's event loop the result is a stand-in for the group, whose operations start
        later, in the loop: see `groups.deferred`.
        """
        if group is None and self.default is not None and self.its_loop is _running_loop():
            return self.default
        chosen = self.member(group)
        # Without a loop ``chosen`` is closed, and says so itself.
        if self.its_loop is None or self.its_loop is _running_loop():
            return chosen
        if self.its_loop.is_closed():
            self.check_loop()
        stand_in = copy(chosen)
        stand_in.start = partial(start_anywhere, chosen)  # type: ignore[method-assign]
        return stand_in

    def group_here(self, group: Group | None) -> GroupEngine:
        """Do as `member`, for what starts now: raise InvalidUsageError in another loop."""
        chosen = self.member(group)
        self.check_loop()
        return chosen

    def member(self, group: Group | None) -> GroupEngine:
        """Do as `find_for_operation`. Raises InvalidUsageError if this rank is not a member."""
        chosen = self.find_for_operation(group)
        if isinstance(chosen, NonGroupMember):
            raise InvalidUsageError(
                f"rank {self.rank} is not a member of this group; only its members may call this"
            )
        return chosen

    def as_its_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function(*args)`` where the world's loop counts as running, and return its result.

        A thread that drives the engine while the loop stands still does not set the running loop for each
        operation: one that completes at once rarely needs it.
        """
        if self.its_loop is None or _running_loop() is not None:
            return function(*args)
        try:
            asyncio._set_running_loop(self.its_loop)
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def check_loop(self) -> None:
        """Refuse a call outside the event loop that ``init_process_group`` ran in.

        A world that is destroyed, or whose ranks still meet, has no loop: all calls are let through.
        """
        running = _running_loop()
        if self.its_loop is None or self.its_loop is running:
            return
        if self.its_loop.is_closed():
            raise InvalidUsageError(_LOOP_ENDED)
        where = "outside any event loop" if running is None else "in another event loop"
        raise InvalidUsageError(
            f"called {where}: this process group belongs to the loop that init_process_group ran "
            "in. Call the function of aiodist, not of aiodist.sync, and await it there (by "
            "asyncio.run_coroutine_threadsafe from other threads), or make the process group by "
            "aiodist.sync.init_process_group, whose functions any thread may call"
        )

    def check_loop_runs(self) -> None:
        """Refuse a call that would wait for ever: this thread runs the loop, and does not run it now.

        So it is between two cells of IPython or two calls of an asyncio.Runner.
        """
        end = monotonic() + _START_SECONDS
        while self.its_thread == get_ident() and self.its_loop and not self.its_loop.is_running():
            if self.its_loop.is_closed():
                return  # the call says so
            if monotonic() > end:
                raise InvalidUsageError(
                    "a call of aiodist.sync would wait for ever here: the process group lives on an "
                    "event loop that this thread runs, and that does not run now. Await the async API "
                    "there, or make the process group by aiodist.sync"
                )
            sleep(0.01)

    # -- p2p.endpoint_events.EndpointEvents

    def is_over(self, key: Key) -> bool:
        kind, group, sequence = key
        known = self._groups.get(group)
        if known is None:
            return group in self._closed
        if known.successor is not None:
            return True
        return kind == COLLECTIVE and known.is_over(sequence)

    def late_message(self, key: Key, src: int, meta: bytes, length: int) -> None:
        kind, group, sequence = key
        known = self._groups.get(group)
        # Of another kind it is a message with a tag, to a group that has a successor.
        if known is not None and kind == COLLECTIVE:
            known.late_message(sequence, src, meta, length)

    def collective_failed(self, src: int, group: int, sequence: int, error: memoryview) -> None:
        known = self._groups.get(group)
        # Another rank may pass on, not knowing that it does, that this one is lost.
        failure = own_loss(decode_error(bytes(error), src), self.rank)
        if known is not None:
            self._note(known, failure, here=False)
            known.failed_elsewhere(sequence, failure)
            for made in self.groups:
                if made.made_by == (group, sequence):
                    made.not_made_elsewhere(failure)
        elif self._may_make(group) and len(self._early) < _MAX_EARLY:
            early = self._early.setdefault(group, [])
            if len(early) < _MAX_EARLY:
                early.append((sequence, failure))

    def agree_arrived(self, src: int, group: int, number: int, message: bytes) -> None:
        known = self._groups.get(group)
        if known is not None:
            known.agreements.received(src, number, message)
        elif group in self._closed:
            refuse(self.endpoint, src, group, number, message)
        elif self._may_make(group) and len(self._early_agreements) < _MAX_EARLY:
            early = self._early_agreements.setdefault(group, [])
            if len(early) < _MAX_EARLY:
                early.append((src, number, message))

    def _may_make(self, group: int) -> bool:
        """Return whether this rank may make ``group``, which it does not know, and others know already.

        Invariant: a connection that is read while the world is empty belongs to the ranks that it had
        before. The default group of the next ones may have the same id.
        """
        return self._endpoint is not None and group not in self._closed

    def present(self, group: int, sequence: int) -> StatusAnswer:
        known = self._groups.get(group)
        now = describe_present(self.recorder)
        if group in self._closed:
            now = f"destroyed its handle of the group, and {now}"
        entered, last = (False, "") if known is None else known.present(sequence)
        return StatusAnswer(entered, last, now)

    def status_answered(self, src: int, group: int, sequence: int, answer: StatusAnswer) -> None:
        known = self._groups.get(group)
        if known is not None:
            known.status_queries.answered(sequence, src, answer)

    def fingerprint_arrived(self, src: int, group: int, sequence: int, fingerprint: bytes) -> None:
        known = self._groups.get(group)
        if known is not None:
            known.fingerprint_arrived(sequence, src, fingerprint)
        elif self._may_make(group) and len(self._early_fingerprints) < _MAX_EARLY:
            # A rank tells of one collective at a time: the first one that it waits in.
            self._early_fingerprints.setdefault(group, {})[src] = sequence, fingerprint

    def explained(self, error: PeerLostError, last: Frame | None) -> PeerLostError:
        return explained(error, last, self._groups, self.rank)

    def activity(self) -> str:
        return describe_activity(self.recorder)

    def woken(self, group: int) -> None:
        known = self._groups.get(group)
        if known is not None and known.communicator is not None:
            known.communicator.on_doorbell()

    def peer_lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        for group in self.groups:
            if rank in group.ranks:
                group.agreements.lost(rank)
                if departed:  # a rank that is done with its work may leave
                    group.peer_left(rank, error)
                else:
                    group.peer_lost(error)
        self.membership.lost(rank, error, departed=departed)

    def announce(
        self,
        group: GroupFacts,
        sequence: int,
        error: DistError,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Tell ``ranks`` (the other members where None) that a collective failed, or the group."""
        self._note(group, error, here=True)
        others = [r for r in group.ranks if r != self.rank] if ranks is None else ranks
        self.endpoint.announce_failure(group.id, sequence, encode_error(error), others)

    def _note(self, group: GroupFacts, error: DistError, *, here: bool) -> None:
        # `shrink` revokes a group that a lost rank has ended: that rank is what a dump is about.
        known = group.end_is_known and isinstance(error, GroupRevokedError)
        if self.observer is not None and not known:
            self.observer.failed(error, here=here)


MAX_REPLACED = 16
"""How many of the groups that a group follows on still answer, the latest ones."""

_MAX_EARLY = 1024
"""Groups, and failures of each, that are remembered before this rank has made them."""

_NO_INIT = (
    "Default process group has not been initialized, please make sure to call init_process_group, "
    "and to await it in an async program."
)
_DESTROYED = (
    "Default process group has not been initialized since destroy_process_group() or "
    "abort_process_group() closed it: call init_process_group to start anew, or destroy it later."
)
_CHILD = (
    "Default process group has not been initialized in this process, which was forked from one that "
    "has: the parent goes on with its own. Call init_process_group here to take part in another job."
)
_LOOP_ENDED = (
    "the event loop that init_process_group ran in has ended: call it, the operations "
    "and destroy_process_group within one asyncio.run(); init_process_group starts anew"
)

# Each context may have a world of its own (many ranks in one process); where none was set, all
# share this one.
_current: ContextVar[World] = ContextVar("aiodist_world", default=World())  # noqa: B039


current_world: Callable[[], World] = _current.get
"""The world of the calling context."""


def use_world(world: World) -> None:
    """Make ``world`` the current one from here on, in this context."""
    _current.set(world)
