"""One rank of a job that tunes: ``python -m aiodist.tuning.rank ORDER``, under the launcher.

``ORDER`` is JSON: operations, sizes, seconds for each of them, and the folder that rank 0 writes
its answer to. In each round every candidate has one turn, forwards and backwards by turns; the time
of a turn is that of its slowest rank. Every operation is measured over messages, and where the ranks
share memory in that too.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiodist.api.closing import destroy_process_group
from aiodist.api.collectives import barrier
from aiodist.api.lifecycle import init_process_group
from aiodist.api.objects import all_gather_object, broadcast_object_list
from aiodist.collectives.select import Choice
from aiodist.collectives.tables import encode, rows_of, shared_rows_of
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.world import current_world
from aiodist.tensors import dtype_named, reduction
from aiodist.tuning.candidates import ITEMSIZE, Memory, candidates
from aiodist.tuning.sharing import SharedRuns, shared_candidates, shares
from aiodist.types import ReduceOp

FEWEST = 3
"""Turns of each candidate, however long they take."""


async def main(order: dict[str, Any]) -> str | None:
    """Measure all that ``order`` says. On rank 0 the tables' rows, as `tables.encode` has them."""
    await init_process_group()
    try:
        group = current_world().default
        assert group is not None  # init_process_group has just made it
        ranks, has_memory = group.n_ranks, await shares(group)
        if not has_memory and group.own_rank == 0:
            sys.stderr.write("the ranks share no memory here: its table is not measured\n")
        rows, shared_rows = {}, {}
        for operation in order["operations"]:
            best, best_shared = [], []
            for nbytes in order["sizes"]:
                matter = _over_messages(group, operation, nbytes)
                best.append((nbytes, await _fastest(group, matter, order["seconds"])))
                if has_memory:
                    matter = _in_memory(group, operation, nbytes)
                    best_shared.append((nbytes, await _fastest(group, matter, order["seconds"])))
            rows[operation] = rows_of(ranks, best)
            if has_memory:
                shared_rows[operation] = shared_rows_of(ranks, best_shared)
        await barrier()
        return encode(rows, shared_rows, {}) if group.own_rank == 0 else None
    finally:
        await destroy_process_group()


class _Matter(NamedTuple):
    """What is to be decided, and how to run a choice."""

    told: str
    names: Mapping[Choice, str]
    """The choices, and what they are called."""
    start: Callable[[Choice], Awaitable[None]]


def _over_messages(group: ProcessGroup, operation: str, nbytes: int) -> _Matter:
    add = reduction(ReduceOp.SUM, dtype_named("float32"), group.n_ranks)
    memory = Memory(operation, group.own_rank, group.n_ranks, nbytes, add)
    fingerprint = Fingerprint(operation, count=nbytes // ITEMSIZE)

    def start(choice: Choice) -> Awaitable[None]:
        return group.collective(fingerprint, memory.body(choice))

    choices = candidates(operation, group.n_ranks, nbytes)
    names = {choice: f"{choice.algorithm}/{choice.chunk >> 10}K" for choice in choices}
    return _Matter(f"{operation} {nbytes} bytes, {group.n_ranks} ranks", names, start)


def _in_memory(group: ProcessGroup, operation: str, nbytes: int) -> _Matter:
    memory = SharedRuns(operation, group, nbytes)
    choices = shared_candidates(operation, group.n_ranks, nbytes)
    told = f"{operation} {nbytes} bytes, {group.n_ranks} ranks, in shared memory"
    return _Matter(told, {choice: choice.algorithm for choice in choices}, memory.start)


async def _fastest(group: ProcessGroup, matter: _Matter, seconds: float) -> Choice:
    """The choice with the smallest median. Rank 0 says on stderr what all took."""
    choices = list(matter.names)
    times: list[list[float]] = [[] for _ in choices]
    end = time.monotonic() + seconds
    turn, going = 0, len(choices) > 1
    while going:
        order = range(len(choices)) if turn % 2 == 0 else reversed(range(len(choices)))
        for number in order:
            taken = await _run(matter, choices[number])
            if turn:  # the first opens connections and touches memory
                times[number].append(taken)
        turn += 1
        going = await _agree(group, turn <= FEWEST or time.monotonic() < end)
    everywhere: list[Any] = [None] * group.n_ranks
    await all_gather_object(everywhere, times)
    medians = [
        statistics.median(map(max, zip(*(ranks[number] for ranks in everywhere), strict=True)))
        if len(choices) > 1
        else 0.0
        for number in range(len(choices))
    ]
    winner = min(range(len(choices)), key=medians.__getitem__)
    if group.own_rank == 0:
        figures = ", ".join(
            f"{matter.names[choice]} {median * 1e6:.0f} us"
            for median, choice in sorted(zip(medians, choices, strict=True))
        )
        only = f"nothing but {matter.names[choices[0]]}"
        sys.stderr.write(f"{matter.told}: {figures if len(choices) > 1 else only}\n")
    return choices[winner]


async def _run(matter: _Matter, choice: Choice) -> float:
    await barrier()
    start = time.perf_counter()
    await matter.start(choice)
    return time.perf_counter() - start


async def _agree(group: ProcessGroup, going: bool) -> bool:
    """Rank 0's answer, on all ranks."""
    told = [going]
    await broadcast_object_list(told, 0)
    return told[0]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    answer = asyncio.run(main(given))
    if answer is not None:
        Path(given["answer"]).write_text(answer, encoding="utf-8")
