"""The host that this process runs on, as far as other ranks must know it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from aiodist.procfs import host_name


def have_cores(allowed: Collection[frozenset[int]]) -> bool:
    """Return whether processes of one host can all run at once, each on a core that it may use.

    ``allowed``: the cores of each. They can if launchers have put them on separate cores, or if each
    may use at least as many cores as there are processes. For sets of cores that overlap in part the
    answer is sometimes too optimistic.
    """
    everything = frozenset[int]().union(*allowed)
    return all(
        sum(cores <= room for cores in allowed) <= len(room) for room in {*allowed, everything}
    )


def spare_cores(allowed: Sequence[frozenset[int]], own: frozenset[int]) -> int:
    """Return how many more cores a rank may use while one other rank of its host waits for it.

    ``allowed``: as of `have_cores`. ``own``: those of this rank. 0 if ranks outnumber cores.
    """
    if not have_cores(allowed):
        return 0
    share = len(frozenset().union(*allowed)) // len(allowed)
    return min(2 * share, len(own)) - 1


def own_cores() -> frozenset[int]:
    """Return the cores that this process may use: all, if the system does not tell which."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # a filter of system calls may refuse it
            return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _yielding() -> Callable[[], object]:
    """Return `os.sched_yield`, or a function that does nothing if the system lacks or refuses that call."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_yield()
        return os.sched_yield
    return lambda: None


yield_core: Callable[[], object] = _yielding()
"""Offer the core of this thread to the other processes."""

HOST_VARIABLE = "AIODIST_HOST_ID"
"""Overrides the name of the host where the kernel's boot id does not tell hosts apart."""


def host_id() -> str:
    """Return a name for this boot of the kernel: equal on all ranks of a host, also in containers.

    AIODIST_HOST_ID overrides it. Ranks with different names share no memory.
    """
    if name := os.environ.get(HOST_VARIABLE, "").strip():
        return name
    path = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return f"{host_name()}-{os.name}"


async def outlast(pids: Iterable[int], seconds: float) -> None:
    """Wait until processes of this host have ended, at most ``seconds``.

    Returns at once where the system has no descriptors of processes.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for pid in pids if hasattr(os, "pidfd_open") else ():
                with contextlib.suppress(OSError):  # it has ended, or this kernel cannot watch it
                    await _ended(os.pidfd_open(pid))


async def _ended(fd: int) -> None:
    """Wait until the process of ``fd`` has ended, and close ``fd``."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
