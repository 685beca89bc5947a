"""What torch's option objects say, in the engine's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch._C import _distributed_c10d as c10d

from aiodist.errors import InvalidUsageError
from aiodist.groups.group_engine import GroupEngine
from aiodist.torch_backend.torch_work import timeout_seconds
from aiodist.types import ReduceOp

T = TypeVar("T")

_NO_LIMIT = timedelta(
    days=365
)  # C++ takes no infinite timeout, and `timedelta.max` overflows there


class BackendOptions:
    """The ``options`` of a group's backend: programs read the timeout there, and set it.

    A copy is an object of torch's own, which has the timeout of now. torch's ``split_group`` makes one.
    """

    backend = "aiodist"

    def __init__(self, group: GroupEngine) -> None:
        self._group = group

    @property
    def _timeout(self) -> timedelta:
        seconds = self._group.timeout
        return _NO_LIMIT if seconds is None else timedelta(seconds=seconds)

    @_timeout.setter
    def _timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    def __deepcopy__(self, memo: Any) -> Any:
        return c10d.Backend.Options(self.backend, self._timeout)


def seconds_of(opts: Any) -> float | None:
    """Return the timeout of one operation in seconds, or None for the group's.

    ``opts``: torch also passes the timeout itself in place of an options object.
    """
    if isinstance(opts, timedelta):
        return timeout_seconds(opts)
    return timeout_seconds(getattr(opts, "timeout", None))


def reduce_op(opts: Any) -> Callable[[], ReduceOp]:
    """Return a function that makes the reduction that options ask for.

    The options are read at once, because torch may change its object later. An invalid reduction
    raises when the result is called.
    """
    found = getattr(opts, "reduceOp", opts)
    if found is None:
        return lambda: ReduceOp.SUM
    state = found.__getstate__() if hasattr(found, "op") else None
    if isinstance(state, tuple) and state[1] is not None:
        factor = state[1]
        return lambda: ReduceOp.premul_sum(factor)
    kind = getattr(found, "op", found)
    return lambda: ReduceOp.of(kind)


def root_rank(opts: Any) -> int:
    """Return the root that options name, or rank 0 where there are no options.

    Raises TypeError for a number, which a method with the short form takes before this.
    """
    if isinstance(opts, int):
        raise TypeError(f"opts must be an object with a rootRank, not {opts}")
    return getattr(opts, "rootRank", 0)


def single(items: Sequence[T], name: str) -> T:
    """The only entry. Raises InvalidUsageError where there are more or none."""
    if len(items) != 1:
        raise InvalidUsageError(f"{name} must be a list of one, not of {len(items)}")
    return items[0]


def splits(sizes: Sequence[int]) -> list[int] | None:
    """Rows for each rank; torch's empty list means equal shares."""
    return list(sizes) or None
