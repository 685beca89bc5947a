"""What there is to choose from where ranks share memory, and whether they do."""

from __future__ import annotations

from aiodist.collectives import operations, shm_operations
from aiodist.collectives.channel import Channel
from aiodist.collectives.select import Choice
from aiodist.groups.contexts import shm_of
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.shm.group_area import LARGEST_SLOT_BYTES


def shared_candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks."""
    return [
        Choice(name)
        for name in shm_operations.ALGORITHMS[operation]
        if not shm_operations.why_not(operation, name, ranks, nbytes, LARGEST_SLOT_BYTES)
    ]


async def shares(group: GroupEngine) -> bool:
    """Whether the members share memory: on all of them the same. A collective."""

    async def body(channel: Channel) -> bool:
        shm = shm_of(channel)
        if shm is None or shm.size != group.size:
            await operations.barrier(channel)
            return False
        await shm_operations.barrier(shm)
        return True

    return await group.collective(Fingerprint("barrier"), body, shares=True)
