"""Ranks of one host that sit on one core while another idles.

Whoever is woken by a message tends to be put on the core of the rank that sent it. Two ranks that
look instead of sleeping then take turns on that core: to the system both are busy, and it takes it
some milliseconds to move one. A rank that has looked in vain for a moment, and sees another rank
running on its own core, therefore steps aside, onto a core where no rank runs. It only moves: what
cores it may use stays as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence

_MOST = 8
"""Ranks to look after: each costs two microseconds."""

FIRST_PAUSE = 1e-3
LONGEST_PAUSE = 64e-3
"""Seconds between two looks. Longer and longer where stepping aside does not help."""

_THREADS = 8
"""Of a rank, beside its main thread: those that were started first."""

_PROCESSOR = 36
"""The core, among the fields of /proc/<pid>/stat behind the name; field 0 is the state."""


class CorePlacement:
    """The other ranks of this rank's host."""

    __slots__ = ("_core", "_next", "_pause", "_pids")

    def __init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._core: Callable[[], int] | None = _which_core()
        self._next = 0.0
        self._pause = FIRST_PAUSE

    def meet(self, pids: Iterable[int]) -> None:
        """Their processes. Looks after none where there are too many."""
        others = tuple(pid for pid in pids if pid != os.getpid())
        self._pids = others if len(others) <= _MOST and self._core is not None else ()

    def move_to_idle_core(self, now: float) -> None:
        """Go to another core if a neighbour runs on this one, and one is free of them.

        ``now``: of `time.perf_counter`. Most calls return at once.
        """
        if now < self._next or not self._pids or self._core is None:
            return
        here = self._core()
        taken = [core for pid in self._pids if (core := running_on(pid)) >= 0]
        if here not in taken or now - self._next > self._pause:
            self._pause = FIRST_PAUSE
        if here in taken and move_from(here, taken):
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._next = now + self._pause


def running_on(pid: int) -> int:
    """A core that a thread of the process runs on just now, -1 if none does.

    The main thread's first: in a blocking program it drives the engine for as long as it can.
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
    """The core of a thread that runs, -1 of one that does not."""
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


def move_from(core: int, taken: Sequence[int]) -> bool:
    """Move this thread from ``core`` to one that is not ``taken``; False if there is none."""
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0)
        free = allowed.difference(taken, (core,))
        if free:
            os.sched_setaffinity(0, free)
            os.sched_setaffinity(0, allowed)
            return True
    return False


def _which_core() -> Callable[[], int] | None:
    """What tells the calling thread's core; None where the system does not."""
    if not hasattr(os, "sched_setaffinity") or not os.path.exists("/proc/self/stat"):
        return None
    which: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return which
