"""Groups of ranks and questions about them. Making one is a collective; asking is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgpack

from aiodist.api.collectives import Timeout
from aiodist.api.process_group import Group, ProcessGroup, handle_of
from aiodist.backends.registry import backend_named, default_backend, make_group, served
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.completion import T
from aiodist.deadline import to_seconds
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.groups.argument_checks import check_int, check_list, check_ranks
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import NON_GROUP_MEMBER, GroupEngine
from aiodist.groups.group_lifecycle import GroupSpec
from aiodist.groups.handle import Group as AnyGroup
from aiodist.groups.naming import group_id
from aiodist.groups.work import Work
from aiodist.groups.world import World, current_world


class _Worlds(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802  # torch's name
        # Before init_process_group None and not an error: scripts have it as a default argument,
        # which Python evaluates while it imports them.
        default = current_world().default
        return None if default is None else handle_of(default)


class GroupMember(metaclass=_Worlds):
    """torch's names for the two special groups: ``WORLD``, all ranks, and ``NON_GROUP_MEMBER``."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


class group(GroupMember):  # noqa: N801  # torch's name
    """The same under its other name, as in ``group=dist.group.WORLD``."""


Plan = tuple[str, tuple[int, ...]]
"""The name and the global ranks of a group that is being made."""


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any | None = None,
    sort_ranks: bool = True,
) -> Work[Group]:
    """Make a group of some ranks of the world.

    All ranks of the world call it, in one order with other collectives. Cancelled, it fails on
    all ranks. With ``use_local_synchronization`` only the members call it.

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
    world = current_world()
    parent = world.group_here(None)
    chosen = check_ranks(parent.ranks if ranks is None else ranks, world.size)
    if sort_ranks:
        chosen = tuple(sorted(chosen))
    made: list[GroupEngine] = []
    make = _maker(world, parent, timeout, backend, pg_options, made, device_id)
    if use_local_synchronization:
        stem = f"{group_desc or 'local'}:{','.join(map(str, chosen))}#"
        plan = (world.unused_name(stem), chosen)
        if world.rank not in chosen:
            raise InvalidUsageError(
                "with use_local_synchronization only the members of the group may call new_group"
            )
        group = make(plan)
        try:
            return _agree(world, made[0], lambda _: [plan], lambda _: group, made)
        except BaseException:
            world.remove(made[0])
            raise
    plans_of = _named(parent, group_desc or "group", [chosen])
    return _agree(world, parent, plans_of, lambda plans: make(plans[0]), made)


def new_subgroups(
    group_size: int | None = None,
    group: AnyGroup | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> Work[tuple[Group, list[Group]]]:
    """Divide a group into groups of consecutive ranks, or of the ranks of each host.

    All ranks of the group call it, in one order with other collectives. Cancelled, it fails on
    all ranks.

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
    world = current_world()
    parent = world.group_here(group)
    if group_size is None:
        parts = _ranks_by_host(world, parent)
    else:
        size = check_int(group_size, "group_size")
        if not 0 < size <= parent.size or parent.size % size:
            raise InvalidUsageError(
                f"group_size {size} does not divide the group's {parent.size} ranks into equal parts"
            )
        parts = [list(parent.ranks[i : i + size]) for i in range(0, parent.size, size)]
    stem = group_desc or "subgroup"
    return _parts(world, parent, stem, parts, timeout, backend, pg_options, _own_and_all)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> Work[tuple[Group, list[Group]]]:
    """Make one group for each list of ranks; the lists have no rank in common.

    All ranks of the world call it, in one order with other collectives. Cancelled, it fails on
    all ranks. Each group is numbered from its lowest rank up.

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
    world = current_world()
    parent = world.group_here(None)
    lists = check_list(ranks_per_subgroup_list, "ranks_per_subgroup_list")
    parts = [sorted(check_ranks(part, world.size)) for part in lists]
    stem = group_desc or "subgroup"
    return _parts(world, parent, stem, parts, timeout, backend, pg_options, _own_and_all)


def split_group(
    parent_pg: AnyGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Work[Group]:
    """Split a group into groups.

    All ranks of the parent group call it, in one order with other collectives. Cancelled, it
    fails on all ranks. Each part is numbered from its lowest rank up.

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
    world = current_world()
    parent = world.group_here(parent_pg)
    lists = [] if split_ranks is None else check_list(split_ranks, "split_ranks")
    if not lists:
        raise InvalidUsageError("split_ranks is required: lists of ranks in the parent group")
    parts = []
    for part in lists:
        numbers = sorted(check_ranks(part, parent.size, "the parent group"))
        parts.append([parent.ranks[number] for number in numbers])
    stem = group_desc or "split"
    return _parts(world, parent, stem, parts, timeout, backend, pg_options, _own)


def get_rank(group: AnyGroup | None = None) -> int:
    """Return this process's number in a group.

    Args:
        group: The process group; None is the default group.

    Returns:
        The number from 0; -1 if this process is not a member.

    Raises:
        NotInitializedError: There is no default group.
    """
    chosen = current_world().find(group)
    return chosen.rank if isinstance(chosen, GroupEngine) else -1


def get_world_size(group: AnyGroup | None = None) -> int:
    """Return how many ranks a group has.

    Args:
        group: The process group; None is the default group.

    Returns:
        The number of members; -1 if this process is not one of them.

    Raises:
        NotInitializedError: There is no default group.
    """
    chosen = current_world().find(group)
    return chosen.size if isinstance(chosen, GroupEngine) else -1


def set_timeout(timeout: float | timedelta, group: AnyGroup | None = None) -> None:
    """Set the timeout of the operations that a group starts from now on, on this rank.

    It takes the place of what `init_process_group` or `new_group` was told. Operations with a
    ``timeout`` of their own keep that one, and what is under way keeps the limit it has. Waits for
    no other rank; any thread may call it.

    Args:
        timeout: Seconds or a timedelta; ``math.inf`` is no limit.
        group: The process group; None is the default group.

    Raises:
        NotInitializedError: There is no default group.
        InvalidUsageError: This rank is not a member of ``group``, or ``timeout`` is not positive.
    """
    current_world().member(group).set_timeout(timeout)


def get_backend(group: AnyGroup | None = None) -> str:
    """Return the name of a group's backend, as it was asked for.

    Args:
        group: The process group; None is the default group.

    Raises:
        NotInitializedError: There is no default group.
        InvalidUsageError: This rank is not a member of ``group``.
    """
    return str(current_world().member(group).backend_name)


def get_backend_config(group: AnyGroup | None = None) -> str:
    """Return the backend of each kind of device of a group, as ``"cpu:aiodist,cuda:nccl"``.

    Args:
        group: The process group; None is the default group.

    Raises:
        NotInitializedError: There is no default group.
        InvalidUsageError: This rank is not a member of ``group``.
    """
    by_device = served(current_world().member(group).backend_name)
    return ",".join(f"{device}:{backend}" for device, backend in by_device.items())


def get_default_backend_for_device(device: Any) -> str:
    """Return the backend that serves tensors on a device by default.

    Args:
        device: A torch.device, or its name, as ``"cuda:0"``.

    Raises:
        InvalidUsageError: No backend serves such tensors by default.
    """
    by_device = served(default_backend())
    kind = getattr(device, "type", None) or str(device).partition(":")[0]
    if kind not in by_device:
        raise InvalidUsageError(
            f"no backend serves {kind} tensors by default; there are defaults for "
            f"{' and '.join(by_device)}"
        )
    return str(by_device[kind])


def get_process_group_ranks(group: AnyGroup | None = None) -> list[int]:
    """Return a group's global ranks, in its own order.

    Args:
        group: The process group; None is the default group.

    Raises:
        NotInitializedError: There is no default group.
        InvalidUsageError: This rank is not a member of ``group``.
    """
    return list(current_world().member(group).ranks)


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return a global rank's number in a group.

    Args:
        group: The process group.
        global_rank: The rank in the world.

    Raises:
        InvalidUsageError: ``global_rank`` or this rank is not a member.
    """
    return current_world().member(group).group_rank(global_rank)


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the global rank of a number in a group.

    Args:
        group: The process group.
        group_rank: The number in the group, from 0.

    Raises:
        InvalidUsageError: It is out of range, or this rank is not a member.
    """
    chosen = current_world().member(group)
    group_rank = check_int(group_rank, "group_rank")
    if not 0 <= group_rank < chosen.size:
        raise InvalidUsageError(
            f"group rank {group_rank} is out of range: {chosen.group_name!r} has {chosen.size} ranks"
        )
    return chosen.ranks[group_rank]


def _parts(
    world: World,
    parent: GroupEngine,
    stem: str,
    parts: Sequence[Sequence[int]],
    timeout: Timeout,
    backend: str | None,
    pg_options: Any | None,
    result: Callable[[list[Group]], T],
) -> Work[T]:
    """Make a group of each of ``parts``, for ``result(groups)``. ``stem``: of their names."""
    plans_of = _named(parent, stem, parts)
    made: list[GroupEngine] = []
    make = _maker(world, parent, timeout, backend, pg_options, made)
    return _agree(world, parent, plans_of, lambda plans: result(list(map(make, plans))), made)


def _named(
    parent: GroupEngine, stem: str, parts: Sequence[Sequence[int]]
) -> Callable[[int], list[Plan]]:
    """Return the plans for ``parts`` of ``parent``, by the sequence number of the call that makes them.

    The number is the parent's own. So its ranks find equal names, although some of them may have
    made other groups, or failed to.
    """
    everybody = [rank for part in parts for rank in part]
    if len(set(everybody)) != len(everybody):
        raise InvalidUsageError("a rank may be in one subgroup only")
    first = parent is parent.world.default and not parent.generation
    prefix = "" if first else f"{parent.group_name}/"

    def plans(sequence: int) -> list[Plan]:
        name = f"{prefix}{stem}#{sequence}"
        several = len(parts) > 1
        return [(f"{name}.{i}" if several else name, tuple(part)) for i, part in enumerate(parts)]

    return plans


def _own(groups: Sequence[Group]) -> Group:
    members = [group for group in groups if isinstance(group, ProcessGroup)]
    return members[0] if members else NON_GROUP_MEMBER


def _own_and_all(groups: list[Group]) -> tuple[Group, list[Group]]:
    return _own(groups), groups


def _maker(
    world: World,
    parent: GroupEngine,
    timeout: Timeout,
    backend: str | None,
    pg_options: Any | None,
    made: list[GroupEngine],
    device: Any | None = None,
) -> Callable[[Plan], Group]:
    """Return what makes the group of a plan, and adds it to ``made`` on its members."""
    name = parent.backend_name if backend is None else backend_named(backend)
    seconds = parent.timeout if timeout is None else to_seconds(timeout)
    device = parent.spec.device if device is None else device

    def make(plan: Plan) -> Group:
        if world.rank not in plan[1]:
            return NON_GROUP_MEMBER
        engine = make_group(world, GroupSpec(*plan, name, seconds, pg_options, device))
        made.append(engine)
        return handle_of(engine)

    return make


def _agree(
    world: World,
    parent: GroupEngine,
    plans_of: Callable[[int], Sequence[Plan]],
    finish: Callable[[Sequence[Plan]], Any],
    made: list[GroupEngine],
) -> Work[Any]:
    """Start a collective that ends with ``finish(plans)`` if all ranks of ``parent`` have equal plans.

    ``made``: the groups that are made by then.
    """

    plans = plans_of(parent.n_started)  # the number of this call
    mine = msgpack.packb(plans)

    async def body(line: CollectiveContext) -> Any:
        everybody = await all_gather_new(line, memoryview(mine))
        for number, theirs in enumerate(everybody):
            if theirs != mine:
                raise CollectiveMismatchError(
                    f"ranks disagree about the new group: rank {parent.global_rank} says "
                    f"{_words(mine)}, rank {parent.ranks[number]} says {_words(theirs)}",
                    operation="new_group",
                    group=parent.group_name,
                    sequence=line.sequence,
                    rank=parent.ranks[number],
                )
        made_here = finish(plans)
        for engine in made:
            engine.made_by = parent.id, line.sequence
        return made_here

    work = parent.collective(Fingerprint("new_group"), body)
    work._when_done(partial(_hand_over, world, work, plans, made))
    return work


def _hand_over(
    world: World, work: Work[Any], plans: Sequence[Plan], made: Sequence[GroupEngine]
) -> None:
    """Close the groups of ``plans`` if ``work`` has failed: the program gets no handle of them.

    If the caller is cancelled before it has them, they are aborted: the other members have theirs.
    """

    def give_up() -> None:
        for engine in made:
            engine.abort()
            world.remove(engine)

    if work._error is None:
        work._unread = give_up
        return
    for engine in made:
        world.remove(engine)
    for name, ranks in plans:
        if world.rank in ranks:
            world.never_make(group_id(name, ranks))


def _words(plans: bytes | memoryview) -> str:
    return ", ".join(f"{name} = {ranks}" for name, ranks in msgpack.unpackb(plans))


def _ranks_by_host(world: World, parent: GroupEngine) -> list[list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank in parent.ranks:
        hosts.setdefault(world.endpoint.host_of(rank), []).append(rank)
    return list(hosts.values())
