"""A collective that is prepared once and started many times: MPI-4's persistent collectives."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aiodist.groups.collective_backend import Start
from aiodist.groups.deferred import start_anywhere
from aiodist.groups.operation import Collective
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.unpicklable import Unpicklable

if TYPE_CHECKING:
    from aiodist.groups.group_engine import GroupEngine


class PersistentCollective(Unpicklable):
    """A collective on fixed tensors: each `start` runs it on what they hold then.

    It is made by `all_reduce_init` and the like, and holds its tensors. Their dtype, shape and strides
    stay as they are; their memory may change, which costs one look-up in each call.
    """

    __slots__ = ("_begin", "_group", "_operation")

    def __init__(self, group: GroupEngine, operation: Collective[None]) -> None:
        """Prepare an operation.

        Args:
            group: The engine of the group that runs it.
            operation: The collective, with its tensors.

        Raises:
            InvalidUsageError: The arguments do not fit together.
        """
        self._group = group
        self._operation = operation
        self._begin: Start = group.backend.prepare(operation, _InTurn(group))

    def start(self, timeout: float | timedelta | None = None) -> Work[None]:
        """Start the collective. All ranks start it in the same place of the group's order.

        The other ranks may call the ordinary function instead. A start need not wait until the one
        before has ended. A cancelled or failed one leaves what that of the ordinary function leaves,
        and the next start is a new operation.

        Args:
            timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

        Raises:
            CollectiveError: The group has ended. The `Work` raises what the ordinary function's does.
        """
        return start_anywhere(self._group, self._operation, timeout, self._begin)

    def __repr__(self) -> str:
        return f"<PersistentCollective {self._operation.kind} of {self._group.group_name!r}>"


class _InTurn:
    """Starts a collective again and again. Each start waits for those before it, on the same tensors."""

    __slots__ = ("_group", "_under_way")

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._under_way: list[int] = []  # starts that had not ended at the last one, by number

    def __call__(self, operation: Any, timeout: float | None = None) -> CompletedRecord | Work[Any]:
        group, number = self._group, self._group.n_started
        # A start that fails ends before those that it waited for. So all are kept, not the last one alone.
        earlier = [each for each in self._under_way if not group.is_over(each)]
        started = group.start_after(earlier, operation, timeout)
        self._under_way = earlier if isinstance(started, tuple) else [*earlier, number]
        return started
