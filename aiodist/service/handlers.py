"""The functions of a user that a service calls: what they must be, and the call itself."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from aiodist.errors import InvalidUsageError

T = TypeVar("T")

Handler = Callable[[list[Any]], Awaitable[Sequence[Any]]]


def check_handler(handler: Any) -> None:
    """Raise TypeError unless ``handler``, which a worker returned, can be called."""
    if not callable(handler):
        raise TypeError(
            "worker() must return the handler, an async function that takes a list of requests, "
            f"not {handler!r}"
        )


@dataclass
class FunctionCall:
    """One call of a user's function by ``service``."""

    service: object
    name: str
    is_over: bool = False


_current: ContextVar[FunctionCall | None] = ContextVar("aiodist_service", default=None)
"""The call that the present code is a part of: tasks and threads that it starts inherit it."""


async def call_async(service: object, name: str, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Return what ``fn``, the ``name`` of ``service``, returns.

    Raises TypeError if it is an ordinary function.
    """
    call = FunctionCall(service, name)
    _current.set(call)
    try:
        called = fn(*args)
        if not inspect.isawaitable(called):
            raise TypeError(
                f"the {name} of a service must be an async function, and it returned "
                f"{type(called).__name__}, which cannot be awaited: write `async def`"
            )
        return await called
    finally:
        call.is_over = True  # code that inherited it is free from now on


def check_outside(service: object) -> None:
    """Raise InvalidUsageError inside a function that ``service`` waits for.

    So does a task that the function has started, for the function may wait for the task.
    """
    call = _current.get()
    if call is not None and call.service is service and not call.is_over:
        raise InvalidUsageError(
            f"call() or grow() inside the {call.name} of the same service would wait for ever: the service "
            f"does nothing else until the {call.name} has returned. Await it after that. A task "
            f"that the {call.name} starts and does not wait for may do so at once, if it is created with "
            "context=contextvars.Context()"
        )
