"""What there is to choose from where ranks share memory, and whether they do."""

from __future__ import annotations

from aiodist.collectives import operations, shared
from aiodist.collectives.channel import Channel
from aiodist.collectives.select import Choice
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.lines import board_of
from aiodist.groups.process_group import ProcessGroup
from aiodist.shared.area import LARGEST_SLOT_BYTES


def shared_candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks."""
    return [
        Choice(name)
        for name in shared.ALGORITHMS[operation]
        if not shared.why_not(operation, name, ranks, nbytes, LARGEST_SLOT_BYTES)
    ]


async def shares(group: ProcessGroup) -> bool:
    """Whether the members share memory: on all of them the same. A collective."""

    async def body(channel: Channel) -> bool:
        board = board_of(channel)
        if board is None or board.size != group.n_ranks:
            await operations.barrier(channel)
            return False
        await shared.barrier(board)
        return True

    return await group.collective(Fingerprint("barrier"), body, shares=True)
