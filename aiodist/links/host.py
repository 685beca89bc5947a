"""The host that this process runs on, as far as ranks must know it of each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path


def have_cores(pids: Iterable[int]) -> bool:
    """Whether these processes of this host can all run at once, each on a core that it may use.

    Processes that launchers have put on cores of their own can, as can those that may use at least
    as many cores as they are. Sets of cores that overlap in part are judged too well at times.
    """
    allowed = [_cores_of(pid) for pid in pids]
    everything = frozenset[int]().union(*allowed)
    return all(
        sum(cores <= room for cores in allowed) <= len(room) for room in {*allowed, everything}
    )


def _cores_of(pid: int) -> frozenset[int]:
    """The cores that a process may use: as many as this one where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(range(os.cpu_count() or 1))
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:  # it has ended, or its number is of another container
        return frozenset(os.sched_getaffinity(0))


HOST_VARIABLE = "AIODIST_HOST_ID"
"""Names the host that a rank is to count as its own, where the kernel's run does not tell."""


def host_id() -> str:
    """A name for this kernel's run: equal on all ranks of one host, also in its containers.

    AIODIST_HOST_ID takes its place: ranks that have different ones share nothing.
    """
    if name := os.environ.get(HOST_VARIABLE, "").strip():
        return name
    path = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return f"{socket.gethostname()}-{os.name}"
