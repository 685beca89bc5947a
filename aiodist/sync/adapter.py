"""Start an operation for the blocking API: the one place that knows ``async_op``."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from aiodist.api.collectives import Timeout
from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.sync.coalescing import coalescing, overlapped
from aiodist.sync.portal import blocking_in_cell, portal

F = TypeVar("F", bound=Callable[..., Any])

Done = Work[None] | None
"""A Work where ``async_op``, else None."""


def member_of(group: Group | None, name: str) -> GroupEngine | None:
    """Return the engine of ``group``, of the default group where None.

    As in torch, a call of ``name`` on a rank outside ``group`` does nothing but warn: then this
    returns None. Raises what `World.find_for_operation` raises.
    """
    world = current_world()
    if group is None and world.default is not None:
        return world.default
    if world.default is None and asyncio._get_running_loop() is not None:
        with blocking_in_cell(name):
            return member_of(group, name)
    found = world.find_for_operation(group)
    if isinstance(found, NonGroupMember):
        warnings.warn(
            f"running {name} on global rank {world.rank}, which does not belong to the given group",
            stacklevel=3,
        )
        return None
    return found


def call(
    async_op: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    group: Group | None,
    timeout: Timeout,
    **kwargs: Any,
) -> Any:
    """Call ``function`` of the async API and return its `Work`, or its result unless ``async_op``.

    For functions that do more than start one operation. ``args``: the arguments before ``group``, of
    which the first is written; ``kwargs``: those after it.
    """
    if member_of(group, function.__name__) is None:
        return None
    kwargs |= {"group": group, "timeout": timeout}
    if coalescing() is None and not async_op:
        return portal().call(function, True, *args, **kwargs)
    start = partial(portal().call, function, False, *args, **kwargs)
    return overlapped(start, args[0], async_op)


def mirrors(function: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that gives a blocking function the docstring of its async ``function``.

    What the blocking function's own docstring says below its first line comes after the first line.
    """

    def decorate(own: F) -> F:
        summary, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
        _, _, more = (inspect.getdoc(own) or "").partition("\n\n")
        own.__doc__ = "\n\n".join(filter(None, (summary, more, rest)))
        return own

    return decorate
