"""Which cores a rank may use, where it is kept on some."""

from __future__ import annotations

import os


def cores_of(rank: int, ranks: int, cores: list[int]) -> list[int]:
    """An equal share of ``cores``, a rank's own; where ranks outnumber cores, one with its neighbours.

    So the ranks of one of several hosts, which are neighbours, find that they share a core.
    """
    share = len(cores) // ranks
    if share:
        return cores[rank * share : (rank + 1) * share]
    return [cores[rank * len(cores) // ranks]]


def pin(rank: int, ranks: int) -> None:
    """Keep this process, with the threads it will start, on its share. Nothing but on Linux.

    Not the default, since no torch launcher does it: where ranks are not pinned, the kernel puts
    two of them on one core for a while, by chance, and figures for small messages fall into two
    groups. Pinned, a library whose calls need several threads of a rank suffers.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(rank, ranks, sorted(os.sched_getaffinity(0))))
