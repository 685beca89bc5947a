"""Which cores a rank may use."""

from __future__ import annotations

import os


def cores_of(rank: int, ranks: int, cores: list[int]) -> list[int]:
    """An equal share of ``cores``, a rank's own; all of them where ranks outnumber cores.

    Unpinned, the kernel puts two ranks on one core for seconds at a time, and figures for small
    messages fall into two groups, several times apart, by chance.
    """
    share = len(cores) // ranks
    return cores[rank * share : (rank + 1) * share] if share else cores


def pin(rank: int, ranks: int) -> None:
    """Keep this process, with the threads it will start, on its share. Nothing but on Linux."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(rank, ranks, sorted(os.sched_getaffinity(0))))
