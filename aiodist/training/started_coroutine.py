"""The rest of what has begun at a call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class StartedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose operations run already. Given up before its first step, it cancels them, too.

    A task that is cancelled before its first step runs no line of its coroutine, so also no ``finally``.
    """

    def __init__(self, rest: Coroutine[Any, Any, None], cancel: Callable[[], object]) -> None:
        """``rest``: waits for the operations, and cancels them if it fails; ``cancel()``: cancels them."""
        self._rest = rest
        self._cancel: Callable[[], object] | None = cancel  # None from the first step on
        # For the `repr` of a task; the coroutine of an ``async def`` has it.
        self.__name__ = rest.__name__  # type: ignore[attr-defined]

    def send(self, value: Any, /) -> Any:
        """Take a step."""
        self._cancel = None
        return self._rest.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the task waits."""
        self._give_up()
        return self._rest.throw(*error)

    def close(self) -> None:
        """Give the operations up: the task will not run it."""
        self._give_up()
        self._rest.close()

    def __await__(self) -> Generator[Any, Any, None]:
        self._cancel = None  # an ``await`` takes the first step at once
        return self._rest.__await__()

    def _give_up(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
