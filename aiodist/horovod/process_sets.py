"""Process sets: Horovod's name for groups of some ranks."""

from __future__ import annotations

from collections.abc import Sequence

import aiodist.sync as dist
from aiodist.errors import InvalidUsageError
from aiodist.groups.handle import Group
from aiodist.horovod import ranks as job


class ProcessSet:
    """Some ranks of the job. `add_process_set` makes it ready for use."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Describe a process set; `add_process_set` makes it ready.

        Args:
            ranks: Global ranks, in any order.
        """
        if any(not isinstance(rank, int) for rank in ranks):
            raise TypeError(f"ranks are ints, not {list(ranks)!r}")
        self._ranks = sorted(ranks)
        self._group: Group | None = None
        self._session: job.Session | None = None  # in which it was made ready
        self._number = 0

    @property
    def process_set_id(self) -> int | None:
        """A number for messages, from 1 on; None where the set is not in use.

        It is in use from `add_process_set` to `remove_process_set`, or to the end of the job.
        """
        is_in_use = job.is_initialized() and self._session is job.session()
        return self._number if is_in_use else None

    @property
    def ranks(self) -> list[int]:
        """The global ranks, in ascending order."""
        return self._ranks

    def included(self) -> bool:
        """Return whether this rank is in the set."""
        return job.rank() in self.ranks

    def size(self) -> int | None:
        """Return the number of ranks; None if the set is not in use."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this rank's number in the set; None if it is not in use."""
        if self.process_set_id is None:
            return None
        self._check_included()
        return self.ranks.index(job.rank())

    def group(self) -> Group | None:
        """Return the group to pass to the blocking API; None is the default group.

        Raises InvalidUsageError if the set is not in use, or this rank is not in it.
        """
        job.session()
        if self.process_set_id is None:
            raise InvalidUsageError(f"{self} is not in use: pass it to hvd.add_process_set() first")
        self._check_included()
        return self._group

    def _check_included(self) -> None:
        if not self.included():
            raise InvalidUsageError(f"rank {job.rank()} is not in {self}")

    def __repr__(self) -> str:
        return f"ProcessSet({self._ranks})"


class GlobalProcessSet(ProcessSet):
    """All ranks of the job, whichever that is: in use from `init` to `shutdown`."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def process_set_id(self) -> int:
        """Always 0."""
        return 0

    @property
    def ranks(self) -> list[int]:
        """All ranks."""
        return list(range(job.size()))

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a process set ready and return it. All ranks call it, those outside the set, too.

    Args:
        process_set: The process set, or a list of global ranks.

    Raises:
        InvalidUsageError: It is in use already.
        CollectiveError: What `aiodist.new_group` raises.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if made.process_set_id is not None:
        raise InvalidUsageError(f"{made} is in use already")
    session = job.session()
    made._group = dist.new_group(made.ranks)
    session.process_sets += 1
    made._session, made._number = session, session.process_sets
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Close a process set.

    Args:
        process_set: The process set.

    Returns:
        False if it is not in use, or is ``global_process_set``.
    """
    if not process_set.process_set_id:
        return False
    if process_set.included():
        dist.destroy_process_group(process_set.group())
    process_set._session = process_set._group = None
    return True


def init(comm: object = None, process_sets: str | Sequence[ProcessSet] | None = None) -> None:
    """Meet the other ranks. A second call does nothing.

    A launcher says which ranks there are (``aiodist run``, ``torchrun``, ``srun``, ``mpiexec``).
    Without one this process is a job of one rank.

    Args:
        comm: None, or an empty list.
        process_sets: Process sets to make ready on all ranks; "dynamic" means none now.

    Raises:
        DistError: What `aiodist.init_process_group` raises.
    """
    is_new = not job.is_initialized()
    job.start(comm)
    if is_new and process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)
