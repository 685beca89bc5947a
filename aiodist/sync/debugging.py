"""A debugger on one rank in the blocking API."""

from __future__ import annotations

import math
import sys

from aiodist.api import debugging as api
from aiodist.groups.handle import Group
from aiodist.sync.adapter import mirrors
from aiodist.sync.collectives import barrier


@mirrors(api.breakpoint)
def breakpoint(rank: int = 0, *, group: Group | None = None) -> None:
    """Open pdb on one rank.

    It runs in the calling thread.
    """
    try:
        api.debug_on(rank, group, sys._getframe(1))
    finally:
        barrier(group, timeout=math.inf)
