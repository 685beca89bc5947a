"""Persistent collectives for the blocking API: those of the async API, started from any thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec

from aiodist.api import persistent as api
from aiodist.groups import persistent_collective
from aiodist.groups.work import Work
from aiodist.sync.portal import portal

P = ParamSpec("P")


class PersistentCollective:
    """A collective on fixed tensors: each ``plan.start().wait()`` runs it on what they hold then.

    It is made by `all_reduce_init` and the like, and holds its tensors. Their dtype, shape and strides
    stay as they are; their memory may change, which costs one look-up in each call.
    """

    __slots__ = ("_prepared",)

    def __init__(self, prepared: persistent_collective.PersistentCollective) -> None:
        """Wrap a collective of the async API.

        Args:
            prepared: That collective.
        """
        self._prepared = prepared

    def start(self, timeout: float | timedelta | None = None) -> Work[None]:
        """Start the collective. All ranks start it in the same place of the group's order.

        The other ranks may call the ordinary function instead. A start need not wait until the one
        before has ended. A cancelled or failed one leaves what that of the ordinary function leaves,
        and the next start is a new operation.

        Args:
            timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

        Returns:
            A `Work`; its ``wait()`` blocks until this rank's part is done.

        Raises:
            CollectiveError: The group has ended; ``wait()`` raises what the ordinary function raises.
        """
        this = self._prepared
        work: Work[None]
        work = portal().start(True, this._group, this._operation, timeout, this._begin)
        return work

    def run(self, timeout: float | timedelta | None = None) -> None:
        """Start the collective, and block until this rank's part is done: ``start().wait()``, but faster.

        Args:
            timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

        Raises:
            CollectiveError: As the ordinary function.
        """
        this = self._prepared
        portal().start(False, this._group, this._operation, timeout, this._begin)

    def __repr__(self) -> str:
        return repr(self._prepared)


def _blocking(
    prepare: Callable[P, persistent_collective.PersistentCollective],
) -> Callable[P, PersistentCollective]:
    """Return ``prepare`` with a result for the blocking API."""

    @wraps(prepare)
    def own(*args: P.args, **kwargs: P.kwargs) -> PersistentCollective:
        prepared: Any = portal().call(prepare, False, *args, **kwargs)
        return PersistentCollective(prepared)

    return own


barrier_init = _blocking(api.barrier_init)
broadcast_init = _blocking(api.broadcast_init)
reduce_init = _blocking(api.reduce_init)
all_reduce_init = _blocking(api.all_reduce_init)
all_gather_into_tensor_init = _blocking(api.all_gather_into_tensor_init)
reduce_scatter_tensor_init = _blocking(api.reduce_scatter_tensor_init)
all_to_all_single_init = _blocking(api.all_to_all_single_init)
