"""A `Work` that ends with a last step of its own after another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aiodist.completion import Pending, T
from aiodist.groups.work import OperationContext, Work
from aiodist.p2p.spin_policy import SpinPolicy


def following(
    loop: asyncio.AbstractEventLoop, work: Work[Any], finish: Callable[[], Coroutine[Any, Any, T]]
) -> Work[T]:
    """Return a work whose result is that of ``finish()``, run in the loop's thread once ``work`` ends well.

    ``finish`` awaits only `Pending`. Errors, timeouts and cancellation are those of ``work``: to
    cancel the result cancels ``work``.
    """
    context = _Following(work)

    async def body() -> T:
        await context.ended
        return await finish()

    both: Work[T] = Work(loop, context, work._recorded)
    both._start_body(body())
    return both


class _Following(OperationContext):
    """The context of a work that follows ``first``, a collective, which postpones its end itself."""

    __slots__ = ("_first", "_words", "ended")

    def __init__(self, first: Work[Any]) -> None:
        self._first = first
        self._words = first._context.describe() if first._context is not None else "an operation"
        self.ended: Pending[None] = Pending()
        first._when_done(self._pass_on)

    def _pass_on(self) -> None:
        error = self._first.exception()
        if error is not None:
            self.ended.fail(error)
        else:
            self.ended.complete(None)

    def describe(self) -> str:
        return self._words

    def waiting_for(self) -> Sequence[int]:
        return self._first._waiting_for()

    @property
    def spin_policy(self) -> SpinPolicy | None:
        context = self._first._context
        return None if context is None else context.spin_policy

    def polls(self) -> Sequence[Callable[[], None]]:
        context = self._first._context
        return () if context is None else context.polls()

    def close(self, error: BaseException | None) -> BaseException | None:
        if not self._first.is_completed():
            self._first.cancel()
        return error

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        self._first._expire(seconds)
