"""How the end of torch's work becomes known without a thread that blocks the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.backends.torch_groups.worker import Worker

Done = Callable[[BaseException | None], None]
"""Called once with the error, or None; in whatever thread learns it."""

FIRST_PAUSE = 50e-6
LONGEST_PAUSE = 5e-3
_SHARE = 8


def when_over(work: Any, waiter: Worker, done: Done) -> None:
    """Call ``done`` when ``work`` of a CPU group has ended.

    Collectives have a future that calls back from torch's thread. Messages have none, so
    ``waiter`` waits for them, one after the other: the caller makes sure that both ends are in it.
    """
    try:
        future = work.get_future()
    except RuntimeError:
        waiter.put(partial(_wait, work, done))
    else:
        future.add_done_callback(partial(_look, done))


def _wait(work: Any, done: Done) -> None:
    try:
        work.wait()
    except Exception as error:  # noqa: BLE001  # torch's, of any class: handed on
        done(error)
    else:
        done(None)


def _look(done: Done, future: Any) -> None:
    try:
        future.value()
    except Exception as error:  # noqa: BLE001  # torch's, of any class: handed on
        done(error)
    else:
        done(None)


class Poll:
    """Asks ``is_over()`` from the loop until it says so, then calls ``done(None)``.

    For what has no callback, such as a CUDA event. The pauses are an eighth of the time that has
    passed, between 50 us and 5 ms: a short operation is noticed soon, a long one costs few wake-ups,
    and none is noticed later than an eighth of its length after its end.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool], done: Done
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
        pause = min(max((self._loop.time() - self._started) / _SHARE, FIRST_PAUSE), LONGEST_PAUSE)
        self._loop.call_later(pause, self)
