"""The participants of a file store, and whether they live: pure decisions over recorded facts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiodist.errors import DistStoreError
from aiodist.procfs import boot_and_namespace, stat_fields

_GONE_STATES = "ZX"  # a zombie has ended, even if its parent has not read its exit code


@dataclass(frozen=True)
class Participant:
    """One handle on the file. ``host``: see `this_host`; ``started``: clock ticks since boot."""

    token: str
    rank: int | None
    pid: int
    host: str
    started: int | None

    @classmethod
    def current(cls, rank: int | None) -> Participant:
        """Return this process as a participant. Raises OSError as `start_time`."""
        pid = os.getpid()
        return cls(os.urandom(8).hex(), rank, pid, this_host(), start_time(pid))

    def describe(self) -> str:
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"

    def is_dead(self) -> bool:
        """Return whether the process has surely ended. False for other hosts: nothing is known of them."""
        if self.host != this_host():
            return False
        if self.started is None:
            return not _exists(self.pid)
        try:
            return start_time(self.pid) != self.started
        except OSError:
            return False


def this_host() -> str:
    """Return what is equal for all processes that see each other's pids, until the next boot."""
    return boot_and_namespace("pid")  # containers may share the boot, and see no other's processes


def start_time(pid: int) -> int | None:
    """Return when ``pid`` was started, or None if it has ended, or without /proc.

    The time tells the process from a later one with the same id. Raises OSError if the system does not
    let this process look, as without a free descriptor.
    """
    try:
        fields = stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends meanwhile
        return None
    return None if fields[0] in _GONE_STATES else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_WATCHED = 8


def neighbours(me: Participant, everybody: Sequence[Participant]) -> list[Participant]:
    """Return the participants that ``me`` watches: the next eight of its host, so that few watch each."""
    here = [other for other in everybody if other.host == me.host]
    at = here.index(me) if me in here else -1
    return [other for other in (here[at + 1 :] + here[: max(at, 0)])[:_WATCHED] if other != me]


def check_admission(path: str, newcomer: Participant, present: Iterable[Participant]) -> None:
    """Raise DistStoreError if another participant in ``present`` holds ``newcomer``'s rank.

    The same process may hold its rank several times: it initialises again.
    """
    present = list(present)
    for other in present:
        if newcomer.rank is None or other.rank != newcomer.rank:
            continue
        if other.host != newcomer.host:
            raise DistStoreError(
                f"{path}: rank {other.rank} is recorded by pid {other.pid} of another host, "
                "container or boot, so the file is probably left over; if that job is over, "
                "delete the file and start again"
            )
        if other.is_dead():
            living = ", ".join(p.describe() for p in present if not p.is_dead())
            raise DistStoreError(
                f"{path}: {other.describe()} of an earlier job is dead, and others of that job "
                f"may still run: {living}; end them or use another file"
            )
        if other.pid != newcomer.pid:
            raise DistStoreError(
                f"{path}: rank {other.rank} is taken by the running process {other.pid}; give each "
                "process a rank of its own, and each job a file of its own"
            )
