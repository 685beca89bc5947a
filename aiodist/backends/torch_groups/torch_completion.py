"""How the end of torch's work becomes known without a thread that blocks the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.backends.torch_groups.worker_thread import Worker

Done = Callable[[BaseException | None], None]
"""Called once with the error, or None; in whatever thread learns it."""


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
