"""Barrier over several hosts: inside each, then between the first ranks of all, then inside again.

Steps: one inside, log2 of the number of hosts between them, one inside. Messages: those of the
dissemination barrier among the first ranks; the other ranks send none.
"""

from __future__ import annotations

from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.multi_host import MultiHostContext


async def barrier_hosts(hosts: MultiHostContext) -> None:
    """Return when all ranks have entered."""
    intra_host = hosts.intra_host
    await intra_host.barrier()
    if intra_host.rank == 0:
        await barrier_dissemination(hosts.across)
    await intra_host.broadcast(0, hosts.scratch(0))
