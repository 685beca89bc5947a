"""The blocking API. Generated from `aiodist.api.state` by ``make generated``: edit that instead."""

from __future__ import annotations

from typing import Any

from aiodist.api import state as api
from aiodist.api.collectives import Timeout
from aiodist.groups.handle import Group
from aiodist.sync.portal import portal


def sync_state(
    state_dict: Any,
    group: Group | None = None,
    src: int | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Any:
    """Make ``state_dict`` on all ranks of a group bitwise equal to that of one.

    All call it, as a collective. On the other ranks ``state_dict`` is changed in place. A tensor
    of the same kind, dtype and shape is written into, so a model whose ``state_dict()`` is passed
    gets the source's parameters. Missing entries are added, and entries that the source does not
    have are removed. A rank that had tensors of another dtype or shape, or under other names, or
    that cannot be written, logs a warning: its model does not get the source's. A namedtuple stays
    one where this rank has one of as many fields.

    It consists of several operations. After a failure or a cancellation the state is a mixture, and
    ranks may have started different numbers of them: call it again on a new group, such as `shrink` makes.

    Blocks until this rank's part is done.

    Args:
        state_dict: Dicts, lists and tuples of tensors (or arrays) and of what objects may hold,
            such as ``model.state_dict()``, ``optimizer.state_dict()``, or both in one dict.
        group: The process group; None is the default group.
        src: The source's global rank. If neither it nor ``group_src`` is given: the first member
            that is no newcomer, the one to ask after `grow` and `rejoin`.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Limit of each of its operations: seconds or a timedelta; None is the group's timeout.

    Returns:
        ``state_dict``; another object where it is neither dict nor list.

    Raises:
        CollectiveError: What `broadcast` and `broadcast_object_list` raise.
        InvalidUsageError: A tensor of the source cannot travel, a sparse one for instance. All ranks
            raise it.
        TypeError: A part of the state cannot travel, a DTensor for instance. The other ranks raise
            InvalidUsageError or CollectiveError.
    """
    return portal().run(api.sync_state, state_dict, group, src, group_src, timeout=timeout)
