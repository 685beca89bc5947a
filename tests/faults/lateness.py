"""How long a busy machine kept ranks from running: the kernel counts it, thread by thread.

The bounds of a cell hold for a rank that gets CPU time. Linux counts for each thread how long it ran
and how long it was runnable but did not run (``schedstat``). The test adds the second figure, as
measured in this cell, to the bound. It adds nothing for a rank that sleeps or computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Turns = dict[str, tuple[float, float]]
"""By thread, the seconds that it has run and those that it has waited to."""

NANOSECOND = 1e-9


def turns_of(pid: int) -> Turns:
    """Return the turns of each thread of a process; empty if it is gone or the kernel does not count."""
    found: Turns = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
            found[task.name] = ran * NANOSECOND, waited * NANOSECOND
    except (OSError, ValueError):
        pass  # a thread that is gone meanwhile is not counted
    return found


def lateness(before: Mapping[int, Turns], after: Mapping[int, Turns]) -> dict[int, float]:
    """Seconds that each rank of ``after`` was late by, because other programs ran.

    Its threads' waits since ``before``, each less the time for which the ranks ran themselves: they
    may have kept each other waiting, which is the product's affair. To that comes the longest of another
    rank's, from which the news may have come.
    """
    spent = {rank: _spent(before.get(rank, {}), threads) for rank, threads in after.items()}
    ran = sum(seconds for threads in spent.values() for seconds, _ in threads)
    own = {
        rank: sum(max(0.0, waited - ran) for _, waited in threads)
        for rank, threads in spent.items()
    }
    return {
        rank: mine + max((late for other, late in own.items() if other != rank), default=0.0)
        for rank, mine in own.items()
    }


def _spent(before: Turns, after: Turns) -> list[tuple[float, float]]:
    found = []
    for thread, (ran, waited) in after.items():
        ran_before, waited_before = before.get(thread, (0.0, 0.0))
        found.append((ran - ran_before, waited - waited_before))
    return found
