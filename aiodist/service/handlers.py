"""The functions of a user that a service calls: what they must be, and the call itself."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Handler = Callable[[list[Any]], Awaitable[Sequence[Any]]]


def check_handler(handler: Any) -> None:
    """Raise TypeError unless ``handler``, which a worker returned, can be called."""
    if not callable(handler):
        raise TypeError(
            "worker() must return the handler, an async function that takes a list of requests, "
            f"not {handler!r}"
        )


async def call_async(fn: Callable[..., Awaitable[T]], name: str, *args: Any) -> T:
    """Return what the async function ``fn`` returns. Raises TypeError if it is an ordinary one."""
    called = fn(*args)
    if not inspect.isawaitable(called):
        raise TypeError(
            f"the {name} of a service must be an async function, and it returned "
            f"{type(called).__name__}, which cannot be awaited: write `async def`"
        )
    return await called
