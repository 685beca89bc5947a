"""Wait for a condition without a callback, by polling, and for a `Pending` in a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiodist.completion import Pending, T
from aiodist.groups.group_engine import GroupEngine
from aiodist.links.host import yield_core

TURN_SECONDS = 1e-3
"""How long to poll in every turn of the loop: about the shortest pause that a loop's timers make."""

LONGEST_PAUSE = 5e-3
_SHARE = 8


class Poll:
    """Poll ``is_over()`` from the loop until it returns True, then call ``done(None)``.

    For conditions without a callback, such as a CUDA event. In the first millisecond each turn of the
    loop polls, and offers its core to other processes. After that the pauses are an eighth of the
    time that has passed, at most 5 ms. A short operation is noticed soon, and a long one costs few
    wake-ups. An error of ``is_over`` goes to ``done``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        is_over: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._is_over = is_over
        self._done = done
        self._started = loop.time()

    def __call__(self) -> None:
        try:
            over = self._is_over()
        except Exception as error:  # noqa: BLE001  # the device's, of any class: handed on
            self._done(error)
            return
        if over:
            self._done(None)
            return
        passed = self._loop.time() - self._started
        if passed < TURN_SECONDS:
            yield_core()
            self._loop.call_soon(self)
        else:
            self._loop.call_later(min(passed / _SHARE, LONGEST_PAUSE), self)


async def awaited(pending: Pending[T]) -> T:
    """Return the value of ``pending`` in a task of asyncio's."""
    done = asyncio.Event()
    pending.callback = done.set
    if not pending.done:
        await done.wait()
    return await pending


async def until(group: GroupEngine, is_over: Callable[[], bool]) -> None:
    """Return when ``is_over()``. For the bodies of operations."""
    over: Pending[None] = Pending()

    def done(error: BaseException | None) -> None:
        over.complete(None) if error is None else over.fail(error)

    Poll(group.world.loop, is_over, done)()
    await over
