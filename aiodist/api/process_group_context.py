"""``process_group``: the default group for the length of an ``async with`` block."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from traceback import format_exception_only
from typing import Any, ParamSpec

from aiodist.api.closing import abort_because, destroy_process_group
from aiodist.api.lifecycle import init_process_group
from aiodist.api.process_group import ProcessGroup, handle_of
from aiodist.groups.world import current_world

P = ParamSpec("P")


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
                await abort_because(format_exception_only(error)[0].strip())
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
