"""What a program holds of a group: its facts, and how to end it."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.unpicklable import Unpicklable


class GroupHandle(Unpicklable):
    """The public side of a group. `aiodist.ProcessGroup` adds the operations.

    The engine behind it, with all that carries operations out, is `_engine`.
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: GroupEngine) -> None:
        """``engine``: carries the group's operations out. Each has one handle."""
        self._engine = engine

    def __copy__(self) -> Self:
        """Return this handle: the copy of a module that holds a group uses the same one."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return this handle, as `__copy__` does."""
        return self

    # -- numbers

    @property
    def group_name(self) -> str:
        """The name of the group in messages, equal on all its ranks."""
        return self._engine.group_name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of the members; ``ranks[i]`` is that of group rank i."""
        return self._engine.ranks

    @property
    def global_rank(self) -> int:
        """This process's global rank."""
        return self._engine.global_rank

    @property
    def timeout(self) -> float | None:
        """The seconds that each operation has where it gives no timeout; None where there is no limit."""
        return self._engine.timeout

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set `timeout` on this rank. See `aiodist.set_timeout`."""
        self._engine.set_timeout(timeout)

    @property
    def generation(self) -> int:
        """How many groups this one follows on: 0 until `shrink` or `grow` has made it."""
        return self._engine.generation

    @property
    def lineage(self) -> tuple[int, ...]:
        """The global ranks that there may be, in the group's order: members, lost ranks, absent ones."""
        return self._engine.lineage

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The global ranks of the members that `grow` took in with this group."""
        return self._engine.newcomers

    def rank(self) -> int:
        """Return this process's number in the group."""
        return self._engine.rank

    def size(self) -> int:
        """Return how many ranks the group has."""
        return self._engine.size

    def name(self) -> str:
        """Return the name of the group's backend, as it was asked for."""
        return str(self._engine.backend_name)

    def group_rank(self, global_rank: int) -> int:
        """Return the group's number of ``global_rank``. Raises InvalidUsageError for a rank outside."""
        return self._engine.group_rank(global_rank)

    # -- its end

    def revoke(self) -> None:
        """End the group on all its ranks, as MPI_Comm_revoke of ULFM.

        What is under way and what comes later raises GroupRevokedError there, naming this rank.
        `shrink` makes a working group of it again. Any thread; a second call does nothing. If the
        event loop does not run, the group ends when it runs again.
        """
        self._engine.revoke()

    def abort(self) -> None:
        """End the group now: an operation that waits on this rank raises GroupClosedError.

        The other members get CollectiveCancelledError for what is under way and GroupRevokedError
        for what comes later, both naming this rank. Nothing is flushed. Any thread; a second
        call does nothing. If the event loop does not run, the group ends when it runs again.
        """
        self._engine.abort()

    def __repr__(self) -> str:
        return repr(self._engine)


Group = GroupHandle | NonGroupMember
"""What functions take as ``group``, beside None for the default group."""
