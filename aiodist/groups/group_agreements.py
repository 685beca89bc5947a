"""The agreements of a group's members on which of them go on, by messages between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgpack

from aiodist.deadline import Deadline
from aiodist.errors import CollectiveTimeoutError, ProtocolError
from aiodist.groups import agreement as protocol
from aiodist.groups.agreement import Agreement, Decision
from aiodist.groups.group_facts import GroupFacts
from aiodist.p2p.endpoint import Endpoint
from aiodist.store.waiting import limit

GONE: bytes = msgpack.packb([protocol.GONE])
"""The answer of a rank that has closed the group."""

_KEPT = 16
"""How many finished agreements still answer, the latest ones. Every living member has entered an
agreement before it is decided, so no living member is more than one behind.
"""

Lead = Callable[[Agreement], None]
"""What the coordinator does when all have joined: offers a value to the agreement."""


def refuse(endpoint: Endpoint, src: int, group: int, number: int, message: bytes) -> None:
    """Answer a ``message`` of ``src`` about agreement ``number`` of ``group``, which is closed here."""
    if message != GONE:  # two ranks that have both closed it would answer each other for ever
        endpoint.agree(src, group, number, GONE)


class AgreeingGroup(GroupFacts, Protocol):
    """What agreements need of their group: see `GroupEngine`."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def successor(self) -> AgreeingGroup | None: ...

    @property
    def newcomers(self) -> Sequence[int]: ...

    def check_open(self) -> None: ...

    def go_on_without(self, rank: int) -> None: ...


class GroupAgreements:
    """A group's agreements, one after the other. The one that gives it a successor is the last."""

    def __init__(self, group: AgreeingGroup) -> None:
        self._group = group
        self._number = 0  # of the agreement that this rank takes part in next
        self._agreements: dict[int, Agreement] = {}
        self._decided: dict[int, asyncio.Event] = {}
        self._leads: dict[int, Lead] = {}
        self.gone: set[int] = set()
        """The members that take part in no agreement any more: they have closed the group."""

    async def agree(self, operation: str, lead: Lead, deadline: Deadline) -> Decision:
        """Take part in the next agreement, named ``operation`` in messages, and return its decision.

        Returns when all members that live have called it. Raises CollectiveTimeoutError at the
        ``deadline``, PeerLostError if the others count this rank as lost, and GroupClosedError if the
        group is closed. Cancelled or timed out, this rank still takes part. The next call is about the
        same agreement, until `go_on`.
        """
        self._check_may_agree()
        number = self._number
        self._leads[number] = lead
        agreement = self._agreement(number)
        if agreement.wants_value:  # an earlier call was cancelled before it had one
            self._lead(number)
        agreement.enter()
        try:
            async with asyncio.timeout(limit(deadline)):
                await self._decided[number].wait()
        except TimeoutError:
            raise self._timeout(operation, agreement, deadline) from None
        self._check_may_agree()  # since it was woken, too
        assert agreement.decision is not None  # the event says so
        return agreement.decision

    def go_on(self, decision: Decision) -> None:
        """Let the next call of `agree` be about the next agreement: ``decision`` changes nothing.

        Another task of this rank may have called it before, for the same decision.
        """
        number = self._number
        current = self._agreements.get(number)
        if current is not None and current.decision is decision:
            self._number = number + 1
            for numbered in (self._agreements, self._decided, self._leads):
                numbered.pop(number - _KEPT, None)  # a program may call grow() in every step

    def received(self, src: int, number: int, message: bytes) -> None:
        """Take a message of ``src`` about agreement ``number``, one of the latest or the next two."""
        oldest = max(0, self._number - _KEPT)
        # The members of the successor have to go on with the same decision as this rank.
        if self._group.is_closed and self._group.successor is None:
            refuse(self._group.endpoint, src, self._group.id, number, message)
        elif src in self._group.ranks and oldest <= number <= self._number + 1:
            try:
                self._agreement(number).receive(src, msgpack.unpackb(message))
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                text = f"rank {src} sent a message of an agreement that cannot be decoded"
                raise ProtocolError(text) from error
            if message == GONE:
                self._went(src)

    def greet(self, rank: int) -> None:
        """Send ``rank`` a message without effect, which opens a stream to it."""
        self._send(0, rank, [protocol.HERE])

    def lost(self, rank: int) -> None:
        """Note that a member has died or left, or that the members count this rank as lost."""
        if self._group.endpoint.given_up is not None:
            self._wake()  # the others gave this rank up: it agrees on nothing alone
            return
        for each in list(self._agreements.values()):
            each.lost(rank)

    def without(self, rank: int) -> None:
        """Go on without member ``rank``, which takes part no more."""
        self.gone.add(rank)
        self.lost(rank)

    def close(self) -> None:
        """Take part in no agreement any more, and tell the members that wait: the group is closed."""
        if self._group.successor is None:
            for number, each in self._agreements.items():
                if number >= self._number:
                    each.leave()
        self._wake()

    def _went(self, rank: int) -> None:
        """Note that member ``rank`` has closed the group.

        The decision may have come first. Then that rank is a member of the successor, which it never makes.
        """
        self.without(rank)
        successor = self._group.successor
        if successor is not None and rank in set(successor.ranks).difference(successor.newcomers):
            successor.go_on_without(rank)

    def _wake(self) -> None:
        """Wake what waits for an agreement here: this rank agrees on nothing any more."""
        for decided in self._decided.values():
            decided.set()

    def _check_may_agree(self) -> None:
        """Raise PeerLostError if the others count this rank as lost, GroupClosedError once it is closed."""
        if (error := self._group.endpoint.given_up) is not None:
            raise error.again()
        if self._group.is_closed:
            self._group.check_open()

    def _agreement(self, number: int) -> Agreement:
        agreement = self._agreements.get(number)
        if agreement is None:
            group = self._group
            self._decided[number] = decided = asyncio.Event()
            self._agreements[number] = agreement = Agreement(
                group.ranks,
                group.global_rank,
                [rank for rank in group.ranks if rank in self.gone or group.endpoint.lost(rank)],
                partial(self._send, number),
                partial(self._lead, number),
                decided.set,
            )
        return agreement

    def _send(self, number: int, rank: int, message: Sequence[Any]) -> None:
        self._group.endpoint.agree(rank, self._group.id, number, msgpack.packb(message))

    def _lead(self, number: int) -> None:
        self._leads[number](self._agreements[number])

    def _timeout(
        self, operation: str, agreement: Agreement, deadline: Deadline
    ) -> CollectiveTimeoutError:
        group, waiting = self._group, agreement.waiting_for
        ranks = ", ".join(map(str, waiting))
        return CollectiveTimeoutError(
            f"{operation} of group {group.group_name!r} timed out after {deadline.timeout:g} s on rank "
            f"{group.global_rank}: it waits for {ranks or 'the value of its own'}; every member that "
            "lives has to call it, and a later call goes on where this one was",
            operation=operation,
            group=group.group_name,
            rank=group.global_rank,
            waiting_for=waiting,
        )
