"""One rank of a job that tunes: ``python -m aiodist.tuning.tuning_rank ORDER``, under the launcher.

``ORDER`` is JSON: operations, sizes, seconds for each of them, and the file that rank 0 writes
its answer to. In each round every candidate has one turn, forwards and backwards by turns; the time
of a turn is that of its slowest rank. Every operation is measured over messages; where the ranks
share memory in that too, and where they live on several hosts, some of them together, by hosts.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from aiodist.api.closing import destroy_process_group
from aiodist.api.collectives import barrier
from aiodist.api.lifecycle import init_process_group
from aiodist.api.objects import all_gather_object, broadcast_object_list
from aiodist.backends.native import NativeBackend
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.rule_tables import encode, rows_of, shared_rows_of, with_defaults
from aiodist.collectives.select import MANY, Choice, Rule, Rules
from aiodist.groups.fingerprint import Fingerprint
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
from aiodist.groups.world import current_world
from aiodist.tensors import dtype_named, reduction, scratch
from aiodist.tuning.candidates import (
    ITEMSIZE,
    call_on_zeros,
    candidates,
    hosts_candidates,
    shared_candidates,
    shares,
    why_not_spread,
)
from aiodist.types import ReduceOp

T = TypeVar("T")

FEWEST = 3
"""Turns of each candidate, however long they take."""


async def main(order: dict[str, Any]) -> str | None:
    """Measure all that rank 0's ``order`` says. On rank 0 the tables' rows, by `tables.encode`."""
    await init_process_group()
    try:
        return await measure(current_world().default_group(), order)
    finally:
        await destroy_process_group()


async def measure(group: GroupEngine, order: dict[str, Any]) -> str | None:
    """`main` among the ranks of ``group``, the default one. A collective."""
    order = await _of_rank_0(order)  # each node's launcher has read a command line of its own
    operations, sizes, seconds = (order[name] for name in ("operations", "sizes", "seconds"))
    has_memory, topology = await shares(group), group.topology
    if not has_memory:
        _say(group, "the ranks do not all share memory here: the table for that is not measured")
    if why := why_not_spread(group):
        _say(group, f"{why}: the table for several hosts is not measured")
    rows, shared_rows, hosts_rows = {}, {}, {}
    for operation in operations:
        best, best_shared, best_hosts = [], [], []
        for nbytes in sizes:
            tuned = _over_messages(group, operation, nbytes)
            best.append((nbytes, await _fastest(group, tuned, seconds)))
            if has_memory:
                tuned = _in_memory(group, operation, nbytes)
                best_shared.append((nbytes, await _fastest(group, tuned, seconds)))
            if topology is not None:
                tuned = _over_hosts(group, topology, operation, nbytes)
                best_hosts.append((nbytes, await _fastest(group, tuned, seconds)))
        rows[operation] = rows_of(group.size, best)
        if has_memory:
            shared_rows[operation] = shared_rows_of(operation, group.size, best_shared)
        if topology is not None:
            hosts_rows[operation] = rows_of(len(topology.hosts), best_hosts)
    await barrier()
    return encode(rows, shared_rows, hosts_rows, {}) if group.rank == 0 else None


class _TunedOperation(NamedTuple):
    """What is to be decided, and how to run a choice."""

    told: str
    names: Mapping[Choice, str]
    """The choices, and what they are called."""
    start: Callable[[Choice], Awaitable[None]]


def _over_messages(group: GroupEngine, operation: str, nbytes: int) -> _TunedOperation:
    add = reduction(ReduceOp.SUM, dtype_named("float32"), group.size)
    call = call_on_zeros(operation, group.rank, group.size, nbytes, add)
    fingerprint = Fingerprint(operation, count=nbytes // ITEMSIZE)

    def start(choice: Choice) -> Awaitable[None]:
        return group.collective(
            fingerprint, lambda channel: call.by_messages(channel, scratch, choice)
        )

    names = _with_chunks(candidates(operation, group.size, nbytes))
    return _TunedOperation(f"{operation} {nbytes} bytes, {group.size} ranks", names, start)


def _in_memory(group: GroupEngine, operation: str, nbytes: int) -> _TunedOperation:
    memory = Runs(operation, group, nbytes, "shared")
    choices = shared_candidates(operation, group.size, nbytes)
    told = f"{operation} {nbytes} bytes, {group.size} ranks, in shared memory"
    return _TunedOperation(told, {choice: choice.algorithm for choice in choices}, memory.start)


def _over_hosts(
    group: GroupEngine, topology: HostTopology, operation: str, nbytes: int
) -> _TunedOperation:
    names = _with_chunks(hosts_candidates(operation, topology, nbytes))
    told = f"{operation} {nbytes} bytes, {group.size} ranks, over {len(topology.hosts)} hosts"
    return _TunedOperation(told, names, Runs(operation, group, nbytes, "hosts").start)


def _with_chunks(choices: Sequence[Choice]) -> dict[Choice, str]:
    return {choice: f"{choice.algorithm}/{choice.chunk >> 10}K" for choice in choices}


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
        """Start the operation by ``choice``."""
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


async def _fastest(group: GroupEngine, tuned: _TunedOperation, seconds: float) -> Choice:
    """Return the choice with the smallest median. Rank 0 writes all medians to stderr."""
    choices = list(tuned.names)
    times: list[list[float]] = [[] for _ in choices]
    end = time.monotonic() + seconds
    turn, going = 0, len(choices) > 1
    while going:
        order = range(len(choices)) if turn % 2 == 0 else reversed(range(len(choices)))
        for number in order:
            taken = await _run(tuned, choices[number])
            if turn:  # the first opens connections and touches memory
                times[number].append(taken)
        turn += 1
        going = await _of_rank_0(turn <= FEWEST or time.monotonic() < end)
    everywhere: list[Any] = [None] * group.size
    await all_gather_object(everywhere, times)
    medians = [
        statistics.median(map(max, zip(*(ranks[number] for ranks in everywhere), strict=True)))
        if len(choices) > 1
        else 0.0
        for number in range(len(choices))
    ]
    winner = min(range(len(choices)), key=medians.__getitem__)
    figures = ", ".join(
        f"{tuned.names[choice]} {median * 1e6:.0f} us"
        for median, choice in sorted(zip(medians, choices, strict=True))
    )
    only = f"nothing but {tuned.names[choices[0]]}"
    _say(group, f"{tuned.told}: {figures if len(choices) > 1 else only}")
    return choices[winner]


async def _run(tuned: _TunedOperation, choice: Choice) -> float:
    await barrier()
    start = time.perf_counter()
    await tuned.start(choice)
    return time.perf_counter() - start


def _say(group: GroupEngine, text: str) -> None:
    if group.rank == 0:
        sys.stderr.write(f"{text}\n")


async def _of_rank_0(value: T) -> T:
    """Return rank 0's ``value`` on all ranks."""
    told = [value]
    await broadcast_object_list(told, 0)
    return told[0]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    given = json.loads(sys.argv[1])
    answer = asyncio.run(main(given))
    if answer is not None:
        Path(given["answer"]).write_text(answer, encoding="utf-8")
