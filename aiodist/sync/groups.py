"""Groups of the blocking API. Each returns the group, or groups, when all ranks agree on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.api import groups as api
from aiodist.api.collectives import Timeout
from aiodist.groups.handle import Group
from aiodist.sync.adapter import mirrors
from aiodist.sync.portal import portal


@mirrors(api.new_group)
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
    """Make a group of ``ranks`` and return it."""
    made: Group = portal().call(
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
    return made


@mirrors(api.new_subgroups)
def new_subgroups(
    group_size: int | None = None,
    group: Group | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Divide a group into equal parts; this rank's own part and all of them."""
    made: tuple[Group, list[Group]] = portal().call(
        api.new_subgroups, True, group_size, group, timeout, backend, pg_options, group_desc
    )
    return made


@mirrors(api.new_subgroups_by_enumeration)
def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Make one group for each list of ranks; this rank's own group and all of them."""
    made: tuple[Group, list[Group]] = portal().call(
        api.new_subgroups_by_enumeration,
        True,
        ranks_per_subgroup_list,
        timeout,
        backend,
        pg_options,
        group_desc,
    )
    return made


@mirrors(api.split_group)
def split_group(
    parent_pg: Group | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Group:
    """Split a group; the part that this rank is in."""
    made: Group = portal().call(
        api.split_group, True, parent_pg, split_ranks, timeout, pg_options, group_desc, backend
    )
    return made
