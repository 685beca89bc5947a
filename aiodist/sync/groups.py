"""The blocking API. Generated from `aiodist.api.groups` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.api import groups as api
from aiodist.api.collectives import Timeout
from aiodist.api.process_group import Group
from aiodist.groups.handle import Group as AnyGroup
from aiodist.sync.portal import portal


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any | None = None,
    sort_ranks: bool = True,
) -> Group:
    """Make a group of some ranks of the world.

    All ranks of the world call it, in one order with other collectives. Cancelled, it fails on
    all ranks. With ``use_local_synchronization`` only the members call it.

    Blocks until this rank's part is done.

    Args:
        ranks: Global ranks of the members, distinct; None is all ranks.
        timeout: Limit of the group's operations: seconds or a timedelta; None is the default group's
            timeout.
        backend: The name of its backend; None is that of the default group.
        pg_options: torch's own options, for a backend of torch's.
        use_local_synchronization: Whether only the members take part in making it.
        group_desc: A name for messages.
        device_id: This rank's GPU, for "nccl"; None is that of the default group.
        sort_ranks: Whether members are numbered from the lowest rank up, or in the order of
            ``ranks``.

    Returns:
        The group; `GroupMember.NON_GROUP_MEMBER` on ranks outside.

    Raises:
        InvalidUsageError: The ranks are no valid group, or ``backend`` is not known.
        CollectiveMismatchError: Ranks pass different ranks; the error has both lists.
        CollectiveError: A rank is lost, or time ran out.
    """
    result: Group = portal().call(
        api.new_group,
        True,
        ranks,
        timeout,
        backend,
        pg_options,
        use_local_synchronization,
        group_desc,
        device_id,
        sort_ranks,
    )
    return result


def new_subgroups(
    group_size: int | None = None,
    group: AnyGroup | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Divide a group into groups of consecutive ranks, or of the ranks of each host.

    All ranks of the group call it, in one order with other collectives. Cancelled, it fails on
    all ranks.

    Blocks until this rank's part is done.

    Args:
        group_size: Ranks in each part, which divides the group's size. None makes one part for
            each host.
        group: The group to divide; None is the default group.
        timeout: Limit of the groups' operations: seconds or a timedelta; None is the parent group's
            timeout.
        backend: The name of their backend; None is that of the parent group.
        pg_options: torch's own options, for a backend of torch's.
        group_desc: A name for messages.

    Returns:
        This rank's own group, and the list of all, with `GroupMember.NON_GROUP_MEMBER` for the
        others.

    Raises:
        InvalidUsageError: The ranks are no valid group, or ``backend`` is not known.
        CollectiveMismatchError: Ranks pass different ranks; the error has both lists.
        CollectiveError: A rank is lost, or time ran out.
    """
    result: tuple[Group, list[Group]] = portal().call(
        api.new_subgroups, True, group_size, group, timeout, backend, pg_options, group_desc
    )
    return result


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Make one group for each list of ranks; the lists have no rank in common.

    All ranks of the world call it, in one order with other collectives. Cancelled, it fails on
    all ranks. Each group is numbered from its lowest rank up.

    Blocks until this rank's part is done.

    Args:
        ranks_per_subgroup_list: For each group the global ranks of its members.
        timeout: Limit of the group's operations: seconds or a timedelta; None is the default group's
            timeout.
        backend: The name of their backend; None is that of the default group.
        pg_options: torch's own options, for a backend of torch's.
        group_desc: A name for messages.

    Returns:
        This rank's own group (or `GroupMember.NON_GROUP_MEMBER`), and the list of all.

    Raises:
        InvalidUsageError: The ranks are no valid group, or ``backend`` is not known.
        CollectiveMismatchError: Ranks pass different ranks; the error has both lists.
        CollectiveError: A rank is lost, or time ran out.
    """
    result: tuple[Group, list[Group]] = portal().call(
        api.new_subgroups_by_enumeration,
        True,
        ranks_per_subgroup_list,
        timeout,
        backend,
        pg_options,
        group_desc,
    )
    return result


def split_group(
    parent_pg: AnyGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Group:
    """Split a group into groups.

    All ranks of the parent group call it, in one order with other collectives. Cancelled, it
    fails on all ranks. Each part is numbered from its lowest rank up.

    Blocks until this rank's part is done.

    Args:
        parent_pg: The group to split; None is the default group.
        split_ranks: For each part the numbers of its members *in the parent group*. They have no
            rank in common.
        timeout: Limit of the groups' operations: seconds or a timedelta; None is the parent group's
            timeout.
        pg_options: torch's own options, for a backend of torch's.
        group_desc: A name for messages.
        backend: The name of their backend; None is that of the parent group.

    Returns:
        The part that this rank is in, or `GroupMember.NON_GROUP_MEMBER`.

    Raises:
        InvalidUsageError: The ranks are no valid group, or ``backend`` is not known.
        CollectiveMismatchError: Ranks pass different ranks; the error has both lists.
        CollectiveError: A rank is lost, or time ran out.
    """
    result: Group = portal().call(
        api.split_group, True, parent_pg, split_ranks, timeout, pg_options, group_desc, backend
    )
    return result
