"""Start an operation of the async API for the blocking one: the one place that knows ``async_op``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiodist.api.cached_calls import CachedCall
from aiodist.api.collectives import Timeout, gather
from aiodist.api.p2p import irecv, isend
from aiodist.groups.group_engine import NonGroupMember
from aiodist.groups.handle import Group
from aiodist.groups.shm_collective import caller_overlaps
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.sync.coalescing import coalescing
from aiodist.sync.portal import portal

F = TypeVar("F", bound=Callable[..., Any])

Done = Work[None] | None
"""A Work where ``async_op``, else None."""


def start(
    async_op: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    group: Group | None,
    timeout: Timeout,
    run_cached: CachedCall | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``function`` of the async API and return its `Work`, or its result unless ``async_op``.

    ``args``: the arguments before ``group``; ``kwargs``: those after it. ``run_cached``: the
    function of the same name in `api.cached_calls`, if it exists.

    As in torch, a call on a rank outside ``group`` does nothing but warn, and returns None.
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
        run_cached = None  # it serves the default group only
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
    """Start an operation that runs while the caller does something else."""
    token = caller_overlaps.set(True)
    try:
        return portal().apply(function, False, args, kwargs)
    finally:
        caller_overlaps.reset(token)


def _outputs(function: Callable[..., Any], args: Sequence[Any]) -> list[Any] | None:
    """Return the tensors that a collective writes, for torch's futures; None for a message."""
    if function in (isend, irecv):
        return None
    written = args[1] or [] if function is gather else args[0] if args else []
    return list(written) if isinstance(written, (list, tuple)) else [written]


def mirrors(function: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that appends the docstring of ``function`` to the blocking function's own."""

    def decorate(own: F) -> F:
        own.__doc__ = f"{own.__doc__}\n\n    {(function.__doc__ or '').strip()}\n"
        return own

    return decorate
