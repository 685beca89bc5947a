"""``process_group``: the default group for the length of an ``async with`` block."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from aiodist.api.closing import abort_because, destroy_process_group
from aiodist.api.lifecycle import init_process_group
from aiodist.api.process_group import ProcessGroup, handle_of
from aiodist.errors import summary_of
from aiodist.groups.world import current_world

P = ParamSpec("P")

_MOST_TEXT = 300
"""The most characters of an error that ended a block, in the errors of the other ranks."""


def _around(
    init: Callable[P, Awaitable[None]],
) -> Callable[P, AbstractAsyncContextManager[ProcessGroup]]:
    """Return ``process_group`` with the parameters of ``init``."""

    @asynccontextmanager
    @wraps(init)
    async def process_group(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[ProcessGroup]:
        await init(*args, **kwargs)
        world = current_world()
        try:
            yield handle_of(world.default_group())
        except BaseException as error:
            if world.is_initialized:
                await abort_because(_summary_of_first(error))
            raise
        if world.is_initialized:  # the block may have destroyed it
            await destroy_process_group()

    process_group.__name__ = process_group.__qualname__ = "process_group"
    process_group.__module__ = __name__
    _, heading, rest = (inspect.getdoc(init) or "").partition("\n\nArgs:\n")
    process_group.__doc__ = inspect.cleandoc(_DOC) + heading + rest
    signature = inspect.signature(init)
    made: Any = process_group
    made.__signature__ = signature.replace(
        return_annotation="AbstractAsyncContextManager[ProcessGroup]"
    )
    return process_group


def _summary_of_first(error: BaseException) -> str:
    """Return the first line of what `summary_of` says: of the first error in an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    line, _, more = summary_of(error).partition("\n")
    return line[:_MOST_TEXT] + (" ..." if more or len(line) > _MOST_TEXT else "")


_DOC = """Meet the other ranks, and destroy all groups at the end of the block.

    It has the parameters of `init_process_group`::

        async with aiodist.process_group() as group:
            await group.all_reduce(x)

    ``group`` is the default group. At the end of the block it does as `destroy_process_group`. If
    the block raises, or is cancelled, it does as `abort_process_group`: the other ranks do not wait
    for this one. Their operations raise GroupRevokedError or CollectiveCancelledError, which name
    this rank and the error that ended the block.
    """

process_group = _around(init_process_group)
