"""Going on without the dead, of the async door: revoke, shrink.

The names and what they mean are those of User-Level Failure Mitigation, the extension of MPI
(Bland et al., "Post-failure recovery of MPI communication capability", 2013).
"""

from __future__ import annotations

from aiodist.api.collectives import Timeout
from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.process_group import Group, NonGroupMember, ProcessGroup
from aiodist.groups.world import current_world


def revoke(group: Group | None = None) -> None:
    """End ``group`` (the default one where None) on all its ranks: `ProcessGroup.revoke`.

    For a rank that finds out something the others have to know, so that they come to `shrink`.
    """
    _member(group).revoke()


async def shrink(group: Group | None = None, timeout: Timeout = None) -> ProcessGroup:
    """The group of those members of ``group`` that are left, in the same order; it works again.

    All members that live call it, when an operation has told them of a death (PeerLostError) or
    of a revocation (GroupRevokedError), or for any other reason: the call revokes the group, so that
    the others learn of it. They agree on who is left, also if more of them die meanwhile;
    whoever dies too late to be left out is found by the next operation. Ranks keep their global
    numbers, ``src=`` and ``dst=`` mean these, and get new ones in the group. If ``group`` was
    the default group, its successor is. ``timeout`` (seconds or timedelta): the group's where None.

    Raises CollectiveTimeoutError naming members that live and have not called it; GroupClosedError
    for a group that was destroyed or aborted; PeerLostError if the others took this very rank for
    dead. Cancelled or timed out, it may be called again, and its outcome is the same on all ranks.
    """
    return await _member(group).shrink(to_seconds(timeout))


def _member(group: Group | None) -> ProcessGroup:
    chosen = current_world().find(group)
    if isinstance(chosen, NonGroupMember):
        raise InvalidUsageError("this rank is not a member of that group")
    return chosen
