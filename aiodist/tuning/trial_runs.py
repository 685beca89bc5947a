"""Runs of one choice as in any job: through the backend, by a table that has nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

import numpy as np

from aiodist.backends.native import NativeBackend
from aiodist.collectives.rule_tables import with_defaults
from aiodist.collectives.select import MANY, Choice, Rule, Rules
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import (
    AllGather,
    AllReduce,
    Broadcast,
    Operation,
    Reduce,
    ReduceScatter,
)
from aiodist.groups.work import Work
from aiodist.tuning.candidates import ITEMSIZE
from aiodist.types import ReduceOp


class Runs:
    """Room for one operation on ``nbytes`` on this rank of ``group``, and its runs.

    What an operation saves by being over at once counts as well.
    """

    def __init__(
        self, operation: str, group: GroupEngine, nbytes: int, table: Literal["shared", "hosts"]
    ) -> None:
        """``table``: which of `Tables` the choice is put into."""
        self.data = np.zeros(nbytes // ITEMSIZE, np.float32)
        length = len(self.data) // group.size
        self.blocks = [self.data[i * length : (i + 1) * length] for i in range(group.size)]
        self.own = self.blocks[group.rank].copy()
        self._operation = operation
        self._group = group
        self._table = table
        self._backends: dict[Choice, NativeBackend] = {}

    def start(self, choice: Choice) -> Work[None]:
        """The operation by ``choice``."""
        backend = self._backends.get(choice)
        if backend is None:
            tables = self._group.world.tables
            usual: Rules = getattr(tables, self._table)
            rules = with_defaults({self._operation: [Rule(MANY, MANY, choice)]}, usual)
            tables = tables._replace(**{self._table: rules})
            backend = self._backends[choice] = NativeBackend(self._group, tables=tables)
        done = backend.start(_OPERATIONS[self._operation](self))
        return self._group.completed(done) if isinstance(done, tuple) else done


_OPERATIONS: MappingProxyType[str, Callable[[Runs], Operation[None]]] = MappingProxyType(
    {
        "broadcast": lambda runs: Broadcast(runs.data, 0),
        "reduce": lambda runs: Reduce(runs.data, 0, ReduceOp.SUM),
        "all_reduce": lambda runs: AllReduce(runs.data, ReduceOp.SUM),
        "all_gather": lambda runs: AllGather(runs.blocks, runs.own),
        "reduce_scatter": lambda runs: ReduceScatter(runs.own, runs.blocks, ReduceOp.SUM),
    }
)
