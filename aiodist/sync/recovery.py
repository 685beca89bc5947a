"""Recovery from lost ranks in the blocking API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from aiodist.api import recovery as api
from aiodist.api import rejoining
from aiodist.api.collectives import Timeout
from aiodist.api.process_group import ProcessGroup
from aiodist.groups.handle import Group
from aiodist.groups.world import current_world
from aiodist.sync import torch_group
from aiodist.sync.adapter import mirrors
from aiodist.sync.lifecycle import inner, opening_world
from aiodist.sync.portal import portal


@mirrors(api.shrink)
def shrink(group: Group | None = None, timeout: Timeout = None) -> ProcessGroup:
    """Return a working group of the members that are left."""
    successor = portal().run(api.shrink, group, timeout)
    if successor._engine is current_world().default:
        torch_group.remake(current_world())
    return successor


@mirrors(api.grow)
def grow(
    store: Any | None = None, ranks: Sequence[int] = (), timeout: Timeout = None
) -> ProcessGroup:
    """Take in the processes that wait to replace lost ranks."""
    before = current_world().default
    group = portal().run(api.grow, inner(store), ranks, timeout)
    if group._engine is not before:
        torch_group.remake(current_world())
    return group


@mirrors(rejoining.rejoin)
def rejoin(
    store: Any | None = None,
    rank: int = -1,
    timeout: float | timedelta | None = None,
    *,
    buffer_bytes: int | None = None,
) -> ProcessGroup:
    """Take the place of a rank that was lost or never there, instead of ``init_process_group``."""
    with opening_world(None, store) as run:
        group: ProcessGroup = run(
            rejoining.rejoin, inner(store), rank, timeout, buffer_bytes=buffer_bytes
        )
    return group


@mirrors(rejoining.register_elastic)
def register_elastic() -> bool:
    """Tell the launcher to replace only the rank that dies."""
    return portal().run(rejoining.register_elastic)
