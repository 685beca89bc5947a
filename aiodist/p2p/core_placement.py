"""Move a rank to an idle core when it shares its core with another rank of the host.

The kernel tends to place a woken rank on the core of the rank that sent the message. If both ranks
then spin, they take turns on that core. To the kernel both are busy, so it takes some milliseconds
to move one of them. A rank that has spun for a moment without success therefore checks whether
another rank runs on its own core, and moves to a core where no rank runs. Only the placement
changes: the set of cores that the rank may use stays the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence

_MOST = 8
"""The largest number of ranks to check: each check takes some microseconds."""

FIRST_PAUSE = 1e-3
LONGEST_PAUSE = 64e-3
"""The longest pause between two checks, in seconds. The pause grows while moving does not help."""

_THREADS = 8
"""Threads checked per rank beside its main thread: those that were started first."""

_PROCESSOR = 36
"""Index of the core among the fields of /proc/<pid>/stat behind the name; field 0 is the state."""


class CorePlacement:
    """Track the other ranks of this host, and move this rank off a core that it shares."""

    __slots__ = ("_core", "_next", "_pause", "_pids")

    def __init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._core: Callable[[], int] | None = _which_core()
        self._next = 0.0
        self._pause = FIRST_PAUSE

    def meet(self, pids: Iterable[int]) -> None:
        """Set the process ids of the other ranks. Too many ranks switch the checks off."""
        others = tuple(pid for pid in pids if pid != os.getpid())
        self._pids = others if len(others) <= _MOST and self._core is not None else ()

    def move_to_idle_core(self, now: float) -> None:
        """Move to a free core if a neighbour runs on this rank's core. Most calls return at once.

        ``now``: of `time.perf_counter`, in seconds.
        """
        if now < self._next or not self._pids or self._core is None:
            return
        if not _may_move():  # a launcher has bound this rank to a core
            self._next = now + LONGEST_PAUSE
            return
        here = self._core()
        taken = [core for pid in self._pids if (core := running_on(pid)) >= 0]
        if here not in taken or now - self._next > self._pause:
            self._pause = FIRST_PAUSE
        if here in taken and move_from(here, taken):
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._next = now + self._pause


def running_on(pid: int) -> int:
    """Return a core that a thread of the process runs on now, or -1 if no thread runs.

    The main thread is checked first: in a blocking program it drives the engine most of the time.
    """
    core = _core_of(f"/proc/{pid}/stat")
    if core < 0:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task")[1 : _THREADS + 1]:
                core = _core_of(f"/proc/{pid}/task/{thread}/stat")
                if core >= 0:
                    break
    return core


def _core_of(path: str) -> int:
    """Return the core of a running thread, or -1 if the thread does not run."""
    try:
        stat = os.open(path, os.O_RDONLY)
    except OSError:
        return -1
    try:
        fields = os.read(stat, 1024).rpartition(b")")[2].split(None, _PROCESSOR + 1)
    except OSError:
        return -1
    finally:
        os.close(stat)
    if len(fields) <= _PROCESSOR or fields[0] != b"R":
        return -1
    return int(fields[_PROCESSOR])


def _may_move() -> bool:
    """Return whether this thread may run on another core than the present one."""
    with contextlib.suppress(OSError):
        return len(os.sched_getaffinity(0)) > 1
    return False


def move_from(core: int, taken: Sequence[int]) -> bool:
    """Move this thread from ``core`` to a core that is not ``taken``.

    Returns False if every core is taken.
    """
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0)
        free = allowed.difference(taken, (core,))
        if free:
            try:
                os.sched_setaffinity(0, free)
            finally:  # a signal's handler may raise in between
                os.sched_setaffinity(0, allowed)
            return True
    return False


def _which_core() -> Callable[[], int] | None:
    """Return a function that tells the calling thread's core, or None if the system has no such
    call.
    """
    if not hasattr(os, "sched_setaffinity") or not os.path.exists("/proc/self/stat"):
        return None
    which: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return which
