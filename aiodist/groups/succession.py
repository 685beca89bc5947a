"""From a group that has ended, or is to grow, to the next: its members agree on who is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from aiodist.deadline import Deadline
from aiodist.errors import CollectiveTimeoutError, PeerLostError, ProtocolError
from aiodist.groups import agreement as protocol
from aiodist.groups.agreement import Agreement, Decision
from aiodist.groups.naming import successor_name
from aiodist.links.rank_info import RankInfo

if TYPE_CHECKING:
    from aiodist.groups.group_engine import GroupEngine

GONE: bytes = msgpack.packb([protocol.GONE])
"""The answer of a rank that has closed the group."""

Lead = Callable[[Callable[[Any], None]], None]
"""What the coordinator does: calls what it is given with the value that it proposes."""


class Succession:
    """A group's agreements, one after the other. The one that gives it a successor is the last."""

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._number = 0  # of the agreement that this rank takes part in next
        self._agreements: dict[int, Agreement] = {}
        self._decided: dict[int, asyncio.Event] = {}
        self._leads: dict[int, Lead] = {}

    async def agree(self, operation: str, lead: Lead, seconds: float | None) -> Decision:
        """Take part in the next agreement, named ``operation`` in messages; what it decides.

        Returns when all members that live have called it. Raises CollectiveTimeoutError after
        ``seconds``. Cancelled or timed out, this rank still takes part, and its next call is
        about the same agreement.
        """
        number = self._number
        self._leads[number] = lead
        agreement = self._agreement(number)
        if agreement.wants_value:  # an earlier call was cancelled before it had one
            self._lead(number)
        agreement.enter()
        try:
            async with asyncio.timeout(seconds):
                await self._decided[number].wait()
        except TimeoutError:
            raise self._timeout(operation, agreement, seconds) from None
        self._number = number + 1
        assert agreement.decision is not None  # the event says so
        return agreement.decision

    def received(self, src: int, number: int, message: bytes) -> None:
        """A message of ``src`` about agreement ``number``."""
        if self._group.is_closed:
            self._group.endpoint.agree(src, self._group.id, number, GONE)
        elif src in self._group.ranks and 0 <= number <= self._number + 1:
            try:
                self._agreement(number).receive(src, msgpack.unpackb(message))
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                text = f"rank {src} spoke of an agreement in a form nobody understands"
                raise ProtocolError(text) from error

    def greet(self, rank: int) -> None:
        """Say something to ``rank`` that means nothing, so that there is a stream to it."""
        self._tell(0, rank, [protocol.HERE])

    def lost(self, rank: int) -> None:
        """A member has died or left."""
        for each in list(self._agreements.values()):
            each.lost(rank)

    def _agreement(self, number: int) -> Agreement:
        agreement = self._agreements.get(number)
        if agreement is None:
            group = self._group
            self._decided[number] = decided = asyncio.Event()
            self._agreements[number] = agreement = Agreement(
                group.ranks,
                group.global_rank,
                [rank for rank in group.ranks if group.endpoint.lost(rank)],
                partial(self._tell, number),
                partial(self._lead, number),
                decided.set,
            )
        return agreement

    def _tell(self, number: int, rank: int, message: Sequence[Any]) -> None:
        self._group.endpoint.agree(rank, self._group.id, number, msgpack.packb(message))

    def _lead(self, number: int) -> None:
        self._leads[number](self._agreements[number].offer)

    def _timeout(
        self, operation: str, agreement: Agreement, seconds: float | None
    ) -> CollectiveTimeoutError:
        group, waiting = self._group, agreement.waiting_for
        ranks = ", ".join(map(str, waiting))
        return CollectiveTimeoutError(
            f"{operation} of group {group.group_name!r} timed out after {seconds:g} s on rank "
            f"{group.global_rank}: it waits for {ranks or 'the value of its own'}; every member that "
            "lives has to call it, and a later call goes on where this one was",
            operation=operation,
            group=group.group_name,
            rank=group.global_rank,
            waiting_for=waiting,
        )


async def shrink(group: GroupEngine, seconds: float | None) -> GroupEngine:
    """See `aiodist.shrink`."""
    if group.successor is not None:
        return group.successor
    group.check_may_go_on()
    deadline = Deadline(group.timeout if seconds is None else seconds)
    group.revoke()
    while True:
        decision = await group.succession.agree("shrink", _no_value, deadline.timeout)
        # The coordinator may have called grow(), to find that nothing has changed. It goes on, and
        # learns from its next operation that the group was revoked.
        if decision.value is None or changes(group, decision):
            return await follow(group, decision, deadline)


def _no_value(offer: Callable[[Any], None]) -> None:
    offer(None)


class Newcomer(NamedTuple):
    """A process that waits to be taken in. ``name``: random, its own."""

    rank: int
    rank_info: bytes
    name: bytes


def newcomers_of(decision: Decision) -> list[Newcomer]:
    """The newcomers that were agreed on."""
    return [] if decision.value is None else [Newcomer(*fields) for fields in decision.value[0]]


def changes(group: GroupEngine, decision: Decision) -> bool:
    """Whether anybody has died or is to be taken in."""
    return bool(newcomers_of(decision)) or decision.members != group.ranks


async def follow(group: GroupEngine, decision: Decision, deadline: Deadline) -> GroupEngine:
    """The group that ``decision`` makes of ``group``; all its members do the same now."""
    newcomers = newcomers_of(decision)
    endpoint = group.world.endpoint
    if group.successor is None:
        for newcomer in newcomers:
            endpoint.renew(RankInfo.decode(newcomer.rank_info))
    new = [newcomer.rank for newcomer in newcomers]
    ranks = [rank for rank in group.lineage if rank in decision.members or rank in new]
    successor = await succeed(group, ranks, deadline, new)
    for rank in new:
        # The first word goes this way: the newcomer cannot know who has heard of it yet.
        successor.succession.greet(rank)
    return successor


async def succeed(
    group: GroupEngine, ranks: Sequence[int], deadline: Deadline, newcomers: Sequence[int] = ()
) -> GroupEngine:
    """Make the group of ``ranks`` that follows on ``group``, as all its members do now.

    ``newcomers``: those of ``ranks`` that are not members of ``group``. Raises PeerLostError where
    this rank is not among them.
    """
    if group.successor is not None:  # another task of this rank was here first
        return group.successor
    me = group.global_rank
    if me not in ranks:
        raise PeerLostError(
            f"the other members of group {group.group_name!r} went on without this rank, {me}: they "
            "took it for dead",
            rank=me,
        )
    make = type(group)
    name = successor_name(group.group_name)
    successor = make(group.world, name, ranks, group.backend_name, group.timeout, group.settings)
    successor.lineage, successor.generation = group.lineage, group.generation + 1
    successor.newcomers = tuple(newcomers)
    group.bind_successor(successor)
    group.succeeded_by(successor)
    world = group.world
    world.add(successor)
    if world.default is group:
        world.default = successor
    await successor.backend.ready(deadline)
    return successor
