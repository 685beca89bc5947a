"""From an async function to a blocking one: the one place that knows ``async_op``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiodist.api.cached_calls import CachedCall
from aiodist.api.collectives import Timeout, gather
from aiodist.api.p2p import irecv, isend
from aiodist.groups.chunk_execution import caller_overlaps
from aiodist.groups.group_engine import NonGroupMember
from aiodist.groups.handle import Group
from aiodist.groups.world import current_world
from aiodist.sync.coalescing import coalescing
from aiodist.sync.portal import portal

F = TypeVar("F", bound=Callable[..., Any])

_ASYNC_OP = """
    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """


def start(
    async_op: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    group: Group | None,
    timeout: Timeout,
    run_cached: CachedCall | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``function`` of the async API; its `Work` if ``async_op``, else what it results in.

    ``run_cached``: its namesake in `api.cached_calls`, where it has one.

    A rank outside ``group`` has nothing to do there: as in torch it is warned, and gets None.
    """
    if group is not None:
        if isinstance(group, NonGroupMember):
            warnings.warn(
                f"running {function.__name__} on global rank {current_world().rank}, which does "
                "not belong to the given group",
                stacklevel=3,
            )
            return None
        kwargs["group"] = group
        run_cached = None  # which knows the default group alone
    if timeout is not None:
        kwargs["timeout"] = timeout
        run_cached = None
    manager = coalescing()
    if manager is not None:
        work = _begin(function, args, kwargs)
        work._outputs = _outputs(function, args)
        manager.append(work)
        return work if async_op else None
    if not async_op:
        return portal().apply(function, True, args, kwargs, run_cached)
    started = _begin(function, args, kwargs)
    started._outputs = _outputs(function, args)
    return started


def _begin(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Start an operation whose caller has something else to do meanwhile."""
    token = caller_overlaps.set(True)
    try:
        return portal().apply(function, False, args, kwargs)
    finally:
        caller_overlaps.reset(token)


def _outputs(function: Callable[..., Any], args: Sequence[Any]) -> list[Any] | None:
    """The tensors that a collective writes: torch's futures have them. None for a message."""
    if function in (isend, irecv):
        return None
    written = args[1] or [] if function is gather else args[0] if args else []
    return list(written) if isinstance(written, (list, tuple)) else [written]


def mirrors(function: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator: what ``function`` of the async API says goes below the own first line."""

    def decorate(own: F) -> F:
        own.__doc__ = f"{own.__doc__}\n\n    {(function.__doc__ or '').strip()}\n"
        if "async_op" in inspect.signature(own).parameters:
            own.__doc__ += _ASYNC_OP
        return own

    return decorate
