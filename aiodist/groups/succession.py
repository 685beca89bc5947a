"""From a group that has ended, or is to grow, to the next."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import PeerLostError
from aiodist.groups.agreement import Decision
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import Newcomer
from aiodist.groups.naming import successor_name
from aiodist.links.rank_info import RankInfo


def shrink(
    group: GroupEngine, timeout: float | timedelta | None = None
) -> Coroutine[Any, Any, GroupEngine]:
    """Return a working group of those members that are left: await it. See `aiodist.shrink`."""
    group.world.check_loop()
    return _shrink(group, to_seconds(timeout))


async def _shrink(group: GroupEngine, seconds: float | None) -> GroupEngine:
    if group.successor is not None:
        return group.successor
    group.check_may_go_on()
    deadline = Deadline(group.timeout if seconds is None else seconds)
    group.revoke()
    while True:
        decision = await group.agreements.agree(
            "shrink", lambda agreement: agreement.offer(None), deadline
        )
        # The coordinator may have called grow(), to find that nothing has changed. It goes on, and
        # learns from its next operation that the group was revoked.
        if decision.value is None or changes(group, decision):
            return await follow(group, decision, deadline)
        group.agreements.go_on(decision)


def newcomers_of(decision: Decision) -> list[Newcomer]:
    """Return the newcomers that were agreed on."""
    return [] if decision.value is None else [Newcomer(*fields) for fields in decision.value[0]]


def changes(group: GroupEngine, decision: Decision) -> bool:
    """Return whether a member has died or a newcomer is to be taken in."""
    return bool(newcomers_of(decision)) or decision.members != group.ranks


async def follow(group: GroupEngine, decision: Decision, deadline: Deadline) -> GroupEngine:
    """Return the group that ``decision`` makes of ``group``; all its members do the same now.

    Raises PeerLostError if the decision leaves this rank out.
    """
    if group.successor is not None:  # another task of this rank was here first
        return group.successor
    newcomers = newcomers_of(decision)
    new = [newcomer.rank for newcomer in newcomers]
    ranks = [rank for rank in group.lineage if rank in decision.members or rank in new]
    me, world = group.global_rank, group.world
    if me not in ranks:
        raise PeerLostError(
            f"the other members of group {group.group_name!r} went on without this rank, {me}: they "
            "took it for dead",
            rank=me,
        )
    for newcomer in newcomers:
        world.endpoint.renew(RankInfo.decode(newcomer.rank_info))
    successor = _successor_of(group, ranks, new)
    for rank in group.agreements.gone.intersection(decision.members):
        successor.go_on_without(rank)
    await successor.backend.ready(deadline)
    for rank in new:
        # This rank connects: the newcomer cannot know which members have heard of it yet.
        successor.agreements.greet(rank)
        world.membership.joined(rank)
    return successor


def _successor_of(
    group: GroupEngine, ranks: Sequence[int], newcomers: Sequence[int]
) -> GroupEngine:
    """Make the group of ``ranks`` that follows on ``group``."""
    spec = group.spec._replace(
        name=successor_name(group.group_name),
        ranks=ranks,
        timeout=group.timeout,  # which may have been set since
        lineage=group.lineage,
        newcomers=newcomers,
        generation=group.generation + 1,
    )
    successor = type(group)(group.world, spec)
    group.bind_successor(successor)
    group.succeeded_by(successor)
    group.register_successor(group, successor)
    return successor
