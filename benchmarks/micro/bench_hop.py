"""From the calling thread into the loop's thread and back: the price of a blocking call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiodist.sync.portal import Portal


def bench_call(benchmark: Any) -> None:
    """The portal's own way in: a callback and a lock."""
    portal = Portal()
    portal.enter()
    try:
        benchmark(portal.call, int, False)
    finally:
        portal.leave()


def bench_call_of_a_finished_work(benchmark: Any) -> None:
    """The same, for an operation that is done when it has started."""

    class Done:
        def add_done_callback(self, callback: Callable[[], None]) -> None:
            callback()

        def result(self) -> None:
            return None

    portal = Portal()
    portal.enter()
    try:
        benchmark(portal.call, Done, True)
    finally:
        portal.leave()


def bench_run_coroutine_threadsafe(benchmark: Any) -> None:
    """For comparison: asyncio's own way, on the same loop."""

    async def nothing() -> None:
        pass

    portal = Portal()
    loop = portal.enter()
    try:
        benchmark(lambda: asyncio.run_coroutine_threadsafe(nothing(), loop).result())
    finally:
        portal.leave()
