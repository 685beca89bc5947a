"""From a group that has ended, or is to grow, to the next: its members agree on who is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack

from aiodist.deadline import Deadline
from aiodist.errors import CollectiveTimeoutError, PeerLostError, ProtocolError
from aiodist.groups import agreement as protocol
from aiodist.groups.agreement import Agreement, Decision
from aiodist.groups.naming import successor_name

if TYPE_CHECKING:
    from aiodist.groups.process_group import ProcessGroup

GONE: bytes = msgpack.packb([protocol.GONE])
"""The answer of a rank that has closed the group."""

Lead = Callable[[Callable[[Any], None]], None]
"""What the coordinator does: calls what it is given with the value that it proposes."""


class Succession:
    """A group's agreements, one after the other. The one that gives it a successor is the last."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._number = 0  # of the agreement that this rank takes part in next
        self._agreements: dict[int, Agreement] = {}
        self._decided: dict[int, asyncio.Event] = {}
        self._leads: dict[int, Lead] = {}

    async def agree(self, operation: str, lead: Lead, seconds: float | None) -> Decision:
        """Take part in the next agreement; what it decides.

        Returns when all members that live have called it. Raises CollectiveTimeoutError after
        ``seconds``. Cancelled or timed out, this rank still takes part, and its next call is
        about the same agreement.
        """
        number = self._number
        self._leads.setdefault(number, lead)
        agreement = self._agreement(number)
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


async def shrink(group: ProcessGroup, seconds: float | None) -> ProcessGroup:
    """See `aiodist.shrink`."""
    if group.successor is not None:
        return group.successor
    group.check_not_closed()
    deadline = Deadline(group.timeout if seconds is None else seconds)
    group.revoke()
    decision = await group.succession.agree("shrink", _no_value, deadline.timeout)
    return await succeed(group, decision.members, deadline)


def _no_value(offer: Callable[[Any], None]) -> None:
    offer(None)


async def succeed(group: ProcessGroup, ranks: Sequence[int], deadline: Deadline) -> ProcessGroup:
    """Make the group of ``ranks`` that follows on ``group``, as all its members do now.

    Raises PeerLostError where this rank is not among them.
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
    successor = make(group.world, name, ranks, group.backend_name, group.timeout)
    successor.lineage, successor.generation = group.lineage, group.generation + 1
    group.bind_successor(successor)
    group.succeeded_by(successor)
    world = group.world
    world.add(successor)
    if world.default is group:
        world.default = successor
    await successor.backend.ready(deadline)
    return successor
