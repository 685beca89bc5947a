"""Persistent collectives for the blocking API: those of the async API, started from any thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec

from aiodist.api import persistent as api
from aiodist.groups import persistent_collective
from aiodist.groups.work import Work
from aiodist.sync.adapter import mirrors
from aiodist.sync.portal import portal
from aiodist.unpicklable import Unpicklable

P = ParamSpec("P")


class PersistentCollective(Unpicklable):
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

    @mirrors(persistent_collective.PersistentCollective.start)
    def start(self, timeout: float | timedelta | None = None) -> Work[None]:
        """Start the collective.

        ``wait()`` of the `Work` blocks until this rank's part is done.
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
