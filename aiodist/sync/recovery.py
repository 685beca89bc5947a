"""Going on without the dead, of the blocking door."""

from __future__ import annotations

from aiodist.api import recovery as api
from aiodist.api.collectives import Timeout
from aiodist.groups.process_group import Group, ProcessGroup
from aiodist.sync.adapter import mirrors
from aiodist.sync.portal import portal


@mirrors(api.revoke)
def revoke(group: Group | None = None) -> None:
    """End a group on all its ranks."""
    api.revoke(group)


@mirrors(api.shrink)
def shrink(group: Group | None = None, timeout: Timeout = None) -> ProcessGroup:
    """A working group of the members that are left."""
    return portal().run(api.shrink, group, timeout)
