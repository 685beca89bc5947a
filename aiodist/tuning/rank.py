"""One rank of a job that tunes: ``python -m aiodist.tuning.rank ORDER``, under the launcher.

``ORDER`` is JSON: operations, sizes, seconds for each of them, and the folder that rank 0 writes
its answer to. In each round every candidate has one turn, forwards and backwards by turns; the time
of a turn is that of its slowest rank.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from aiodist.api.collectives import barrier
from aiodist.api.lifecycle import destroy_process_group, init_process_group
from aiodist.api.objects import all_gather_object, broadcast_object_list
from aiodist.collectives.select import Choice
from aiodist.collectives.tables import encode, rows_of
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.world import current_world
from aiodist.tensors import dtype_named, reduction
from aiodist.tuning.candidates import ITEMSIZE, Memory, candidates
from aiodist.types import ReduceOp

FEWEST = 3
"""Turns of each candidate, however long they take."""


async def main(order: dict[str, Any]) -> str | None:
    """Measure all that ``order`` says. On rank 0 the table's rows, as `tables.encode` has them."""
    await init_process_group()
    try:
        group = current_world().default
        assert group is not None  # init_process_group has just made it
        rows = {}
        for operation in order["operations"]:
            best = []
            for nbytes in order["sizes"]:
                choice, told = await _fastest(group, operation, nbytes, order["seconds"])
                best.append((nbytes, choice))
                if group.own_rank == 0:
                    sys.stderr.write(told + "\n")
            rows[operation] = rows_of(group.n_ranks, best)
        await barrier()
        return encode(rows, {}) if group.own_rank == 0 else None
    finally:
        await destroy_process_group()


async def _fastest(
    group: ProcessGroup, operation: str, nbytes: int, seconds: float
) -> tuple[Choice, str]:
    """The choice with the smallest median, and a line that says so."""
    add = reduction(ReduceOp.SUM, dtype_named("float32"), group.n_ranks)
    memory = Memory(operation, group.own_rank, group.n_ranks, nbytes, add)
    choices = candidates(operation, group.n_ranks, nbytes)
    times: list[list[float]] = [[] for _ in choices]
    end = time.monotonic() + seconds
    turn, going = 0, len(choices) > 1
    while going:
        order = range(len(choices)) if turn % 2 == 0 else reversed(range(len(choices)))
        for number in order:
            taken = await _run(group, operation, nbytes, memory, choices[number])
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
    told = ", ".join(
        f"{choice.algorithm}/{choice.chunk >> 10}K {median * 1e6:.0f} us"
        for median, choice in sorted(zip(medians, choices, strict=True))
    )
    return choices[winner], f"{operation} {nbytes} bytes, {group.n_ranks} ranks: {told}"


async def _run(
    group: ProcessGroup, operation: str, nbytes: int, memory: Memory, choice: Choice
) -> float:
    await barrier()
    fingerprint = Fingerprint(operation, count=nbytes // ITEMSIZE)
    start = time.perf_counter()
    await group.collective(fingerprint, memory.body(choice))
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
