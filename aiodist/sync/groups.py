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
    """Make a group of ``ranks`` (global; all where None), numbered from the lowest up.

    With ``sort_ranks=False`` they are numbered in the order of the list.

    All ranks of the world call it, with equal ``ranks``: else CollectiveMismatchError on all, with
    both lists. With ``use_local_synchronization`` only the members call it. Its result is the
    group, or `GroupMember.NON_GROUP_MEMBER` on ranks outside. ``timeout``: of the group's
    operations, the default group's where None. ``group_desc``: a name for messages.

    Blocks until this rank's part is done.
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
    """Divide ``group`` (default: the world) into groups of ``group_size`` consecutive ranks.

    A ``group_size`` of None makes one group for each host, if all hosts have equally many ranks.
    The result is this rank's own group and the list of all.

    Blocks until this rank's part is done.
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
    """Make one group for each list of global ranks; the lists have no rank in common.

    Each group is numbered from its lowest rank up.
    The result is this rank's own group (or `GroupMember.NON_GROUP_MEMBER`) and the list of all.

    Blocks until this rank's part is done.
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
    """Split ``parent_pg`` into groups; ``split_ranks`` lists numbers *in the parent group*.

    Each part is numbered from its lowest rank up. All ranks of the parent call it. Its result is
    the part that this rank is in, or `GroupMember.NON_GROUP_MEMBER`.

    Blocks until this rank's part is done.
    """
    result: Group = portal().call(
        api.split_group, True, parent_pg, split_ranks, timeout, pg_options, group_desc, backend
    )
    return result
