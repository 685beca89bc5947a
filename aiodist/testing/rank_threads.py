"""A rank's blocking function in a thread, beside the event loop on which the rank's group lives."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiodist.api.available import is_initialized
from aiodist.api.closing import abort_process_group

T = TypeVar("T")


def in_thread(fn: Callable[[int], T]) -> Callable[[int], Awaitable[T]]:
    """Return an async function that calls ``fn(rank)`` in a new thread and returns its result.

    ``fn`` sees the context variables of the caller, so also its world: `aiodist.sync` works in it.
    Cancelled, it aborts the caller's process group, so that a blocked operation of ``fn`` raises
    GroupClosedError, and then waits for the end of ``fn``.
    """

    async def call(rank: int) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                result = context.run(fn, rank)
            except BaseException as error:  # noqa: BLE001  # raised where ``call`` is awaited
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(done.set_result, result)

        # Not the executor of asyncio.to_thread: it has fewer threads than there may be ranks.
        threading.Thread(target=run, name=f"rank {rank}", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done() and is_initialized():
                await abort_process_group()
            await asyncio.wait({done})
            done.exception()  # retrieved, so that asyncio does not log it
            raise

    return call


def _fail(done: asyncio.Future[T], error: BaseException) -> None:
    if isinstance(error, StopIteration):  # a future refuses it
        wrapped = RuntimeError("fn raised StopIteration")
        wrapped.__cause__ = error
        error = wrapped
    done.set_exception(error)
