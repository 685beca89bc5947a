"""Barrier over several hosts: inside each, then between the first ranks of all, then inside again.

Steps: one inside, log2 of the number of hosts between them, one inside. Messages: those of the
dissemination barrier among the first ranks; the other ranks send none.
"""

from __future__ import annotations

from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.spread import Hosts


async def barrier_hosts(hosts: Hosts) -> None:
    """Return when all ranks have entered."""
    inside = hosts.inside
    await inside.barrier()
    if inside.rank == 0:
        await barrier_dissemination(hosts.across)
    await inside.broadcast(0, hosts.scratch(0))
