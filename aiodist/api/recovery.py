"""Recovery from lost ranks in the async API: revoke, shrink, grow.

The names and what they mean are those of User-Level Failure Mitigation, the extension of MPI
(Bland et al., "Post-failure recovery of MPI communication capability", 2013).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.api.process_group import ProcessGroup, handle_of
from aiodist.api.rejoining import knows_secret, meeting_place, refuse, waiting_at, welcome
from aiodist.deadline import Deadline
from aiodist.errors import CollectiveTimeoutError, DistStoreError, summary_of
from aiodist.groups.agreement import Agreement, Decision
from aiodist.groups.argument_checks import check_ranks
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import Newcomer
from aiodist.groups.handle import Group
from aiodist.groups.succession import changes, follow, newcomers_of
from aiodist.groups.succession import shrink as shrink_engine
from aiodist.groups.world import current_world
from aiodist.links.rank_info import RankInfo
from aiodist.store import Store
from aiodist.store.waiting import in_time, pauses
from aiodist.transport.connecting import within

log = logging.getLogger("aiodist")

_GRACE_SECONDS = 2.0
"""How much longer than the coordinator, which waits for newcomers, the others wait for it."""


def revoke(group: Group | None = None) -> None:
    """End a group on all its ranks: `ProcessGroup.revoke`.

    A rank calls it to make the other members stop what they do and call `shrink`.

    Args:
        group: The process group; None is the default group.
    """
    current_world().member(group).revoke()


async def shrink(group: Group | None = None, timeout: Timeout = None) -> ProcessGroup:
    """Return a working group of the members that are left, in the same order.

    All members that are alive call it: after PeerLostError, after GroupRevokedError, or for any
    other reason. The call revokes the group, so that the other members learn of it. They agree on
    the members that are left, even if more ranks die meanwhile. A rank that dies too late to be
    left out is reported by the next operation.

    Ranks keep their global numbers, which ``src=`` and ``dst=`` mean, and get new numbers in the
    group. If ``group`` was the default group, the result becomes the default group. Cancelled or
    timed out, it may be called again, and its outcome is the same on all ranks.

    Args:
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout.

    Returns:
        The new group.

    Raises:
        CollectiveTimeoutError: It names members that are alive and have not called it.
        GroupClosedError: The group was destroyed or aborted.
        PeerLostError: The other members counted this rank as dead.
        InvalidUsageError: Over MPI, where neither `shrink` nor `grow` is possible.
    """
    return handle_of(await shrink_engine(current_world().member(group), timeout))


async def grow(
    store: Any | None = None, ranks: Sequence[int] = (), timeout: Timeout = None
) -> ProcessGroup:
    """Take the processes that wait in `rejoin` into the default group.

    All members of the default group call it, at the same point of their program. If no process
    waits and no rank has died, the result is the same group. So a training loop may call it every
    few steps.

    Otherwise a new group becomes the default: newcomers take the places of lost ranks and those
    that ``capacity`` of `init_process_group` keeps. Dead ranks are left out as in `shrink`.
    Subgroups of the old group have to be made again. Cancelled, it may be called again.

    Args:
        store: The store that the newcomers pass to `rejoin`; None is that of ``aiodist run
            --max-restarts``.
        ranks: Global ranks to wait for. A member that has died counts as one to wait for. One that
            dies while newcomers come in is left out: then all, newcomers too, call it again. So do
            the members if one of them has called `shrink` meanwhile, and ``ranks`` are not there yet.
        timeout: How long to wait for ``ranks``: seconds or a timedelta; None is the group's
            timeout.

    Returns:
        The default group from now on.

    Raises:
        CollectiveTimeoutError: None of ``ranks`` came, or the store fails (on all members, which
            stay a group, without those that have died), or a member that is alive has not called it.
        InvalidUsageError: There is no store, a rank is out of range, or the group is over MPI.
        GroupClosedError: The group was destroyed or aborted.
        PeerLostError: The other members counted this rank as dead.
    """
    world = current_world()
    group = world.default_group()
    world.check_loop()
    group.check_may_go_on()
    expected = check_ranks(ranks, world.size, may_be_empty=True)
    deadline = Deadline(group.timeout if timeout is None else timeout)
    async with meeting_place(world, store, deadline) as place:
        # A call that was cancelled after the decision has left these. The others have gone on.
        newcomers = None if group.n_started else group.unwelcomed
        missing, why = [], ""
        if newcomers is None:
            decision = await _agree(group, place, expected, deadline)
            newcomers = newcomers_of(decision)
            if decision.value is not None:  # else the coordinator has called `shrink`
                _, missing, why = decision.value
            if decision.value is None or changes(group, decision):
                group = await follow(group, decision, deadline)
                group.unwelcomed = newcomers
            else:
                group.agreements.go_on(decision)
        for newcomer in newcomers:  # every member, since any of them may die
            with contextlib.suppress(DistStoreError, TimeoutError):
                async with within(Deadline(max(deadline.remaining(), _GRACE_SECONDS))):
                    await welcome(place, newcomer, group)
        group.unwelcomed = None
        if missing and not newcomers:
            raise _none_came(group, missing, why, deadline)
        return handle_of(group)


async def _agree(
    group: GroupEngine, place: Store, expected: Sequence[int], deadline: Deadline
) -> Decision:
    scouts: list[asyncio.Task[None]] = []
    is_over = False

    def lead(agreement: Agreement) -> None:
        if not is_over:  # else the next call offers something
            looking = _look(group, agreement, place, expected, deadline)
            scouts.append(asyncio.ensure_future(looking))

    try:
        return await group.agreements.agree("grow", lead, deadline.later(_GRACE_SECONDS))
    finally:
        is_over = True
        for task in scouts:
            task.cancel()
        await asyncio.gather(*scouts, return_exceptions=True)


async def _look(
    group: GroupEngine,
    agreement: Agreement,
    place: Store,
    expected: Sequence[int],
    deadline: Deadline,
) -> None:
    """Offer the newcomers that wait at the store, the ranks of ``expected`` that are not there, and why.

    Only the coordinator of the agreement runs it. The other members wait for what it offers, so it
    offers something whatever happens to it. A member that dies meanwhile is one to wait for: members
    that call `shrink` at that moment go on with the same group, and would not come to a second agreement.
    """
    newcomers: list[Newcomer] = []
    why = ""

    def missing() -> list[int]:
        there = {*agreement.alive, *(newcomer.rank for newcomer in newcomers)}
        return [rank for rank in expected if rank not in there]

    end = deadline.later(_GRACE_SECONDS / 2)  # before the others wait no more
    try:
        for pause in pauses():
            free = [rank for rank in group.lineage if rank not in agreement.alive]
            found = []
            for newcomer in await in_time(waiting_at(place, free), end):
                RankInfo.decode(newcomer.rank_info)  # else no member could follow the decision
                if knows_secret(newcomer, group.world.newcomer_key):
                    found.append(newcomer)
                else:
                    await in_time(refuse(place, newcomer), end)
            newcomers = found
            if not missing() or deadline.expired():
                break
            await asyncio.sleep(min(pause, deadline.remaining()))
    except Exception as error:  # noqa: BLE001  # of any store, or of what an entry there holds
        why = summary_of(error)
        log.warning("no newcomer can be taken in: %s", why)
    agreement.offer([[list(newcomer) for newcomer in newcomers], missing(), why])


def _none_came(
    group: GroupEngine, missing: Sequence[int], why: str, deadline: Deadline
) -> CollectiveTimeoutError:
    ranks = ", ".join(map(str, missing))
    if why:  # there may be no timeout
        text = f"found no process for rank {ranks}, and looks no more: {why}"
    else:
        text = (
            f"timed out after {deadline.timeout:g} s: no process came for rank {ranks}; start a "
            "process that calls rejoin() as that rank, at the same store"
        )
    return CollectiveTimeoutError(
        f"grow of group {group.group_name!r} {text}",
        operation="grow",
        group=group.group_name,
        rank=group.global_rank,
        waiting_for=missing,
    )
