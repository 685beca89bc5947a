"""What there is to choose from where ranks share memory, and whether they do."""

from __future__ import annotations

from aiodist.collectives import operations, shared
from aiodist.collectives.channel import Channel
from aiodist.collectives.select import SHARED_RULES, Choice, Rules
from aiodist.collectives.tables import Tables
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.lines import board_of
from aiodist.groups.process_group import ProcessGroup
from aiodist.shared.area import LARGEST_SLOT_BYTES
from aiodist.tuning.runs import Runs


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


def runs_in_memory(operation: str, group: ProcessGroup, nbytes: int) -> Runs:
    """Room for ``operation`` on ``nbytes``, and its runs in shared memory."""

    def put(tables: Tables, rules: Rules) -> Tables:
        return tables._replace(shared=rules)

    return Runs(operation, group, nbytes, SHARED_RULES, put)
