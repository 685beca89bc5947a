"""When the collectives of a group may begin, where another library carries them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aiodist.completion import T
from aiodist.groups.contexts import CollectiveContext


class CollectiveGate(Protocol):
    """Lets the collectives of a group begin, for the library that carries them."""

    async def enter(self, context: CollectiveContext) -> None:
        """Return when the collective may begin. It awaits only `Pending`."""

    def leave(self, context: CollectiveContext) -> None:
        """Note that the collective, which had called `enter`, is over."""


async def through_gate(
    gate: CollectiveGate,
    context: CollectiveContext,
    body: Callable[[CollectiveContext], Coroutine[Any, Any, T]],
) -> T:
    """Await ``body(context)`` between `enter` and `leave` of ``gate``."""
    try:
        await gate.enter(context)
        return await body(context)
    finally:
        gate.leave(context)
