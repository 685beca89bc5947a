"""What there is to choose from where ranks share memory, and a run of one choice.

It runs as in any job, through the backend, so that what an operation of one slot saves by being over
at once counts as well.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from aiodist.backends.native import NativeBackend
from aiodist.collectives import operations, shared
from aiodist.collectives.channel import Channel
from aiodist.collectives.select import MANY, SHARED_RULES, Choice, Rule
from aiodist.collectives.tables import Tables, with_defaults
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.lines import board_of
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.shared.area import SLOT_BYTES
from aiodist.tuning.candidates import ITEMSIZE
from aiodist.types import ReduceOp


def shared_candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks."""
    return [
        Choice(name)
        for name in shared.ALGORITHMS[operation]
        if not shared.why_not(operation, name, ranks, nbytes, SLOT_BYTES)
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


class SharedRuns:
    """Room for one operation on ``nbytes`` on this rank of ``group``, and its runs."""

    def __init__(self, operation: str, group: ProcessGroup, nbytes: int) -> None:
        self.data = np.zeros(nbytes // ITEMSIZE, np.float32)
        length = len(self.data) // group.n_ranks
        self.blocks = [self.data[i * length : (i + 1) * length] for i in range(group.n_ranks)]
        self.own = self.blocks[group.own_rank].copy()
        self._operation = operation
        self._group = group
        self._backends: dict[Choice, NativeBackend] = {}

    def start(self, choice: Choice) -> Work[None]:
        """The operation by ``choice``."""
        backend = self._backends.get(choice)
        if backend is None:
            rules = with_defaults({self._operation: [Rule(MANY, MANY, choice)]}, SHARED_RULES)
            tables = Tables(self._group.world.tables.messages, rules)
            backend = self._backends[choice] = NativeBackend(self._group, tables=tables)
        return _STARTS[self._operation](backend, self)


_STARTS: MappingProxyType[str, Callable[[NativeBackend, SharedRuns], Work[None]]] = (
    MappingProxyType(
        {
            "broadcast": lambda by, m: by.broadcast(m.data, 0, None),
            "reduce": lambda by, m: by.reduce(m.data, 0, ReduceOp.SUM, None),
            "all_reduce": lambda by, m: by.all_reduce(m.data, ReduceOp.SUM, None),
            "all_gather": lambda by, m: by.all_gather(m.blocks, m.own, None),
            "reduce_scatter": lambda by, m: by.reduce_scatter(m.own, m.blocks, ReduceOp.SUM, None),
        }
    )
)
