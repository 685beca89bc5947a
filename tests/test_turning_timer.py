"""A timer that does not count the time in which its loop stands still."""

from __future__ import annotations

import asyncio
import time

from aiodist.turning_timer import TurningTimer
from tests.limits import until


async def test_a_loop_that_stands_still_uses_up_one_tick_alone() -> None:
    loop, called = asyncio.get_running_loop(), []
    TurningTimer(loop, 0.5, lambda: called.append(loop.time()))
    time.sleep(0.7)  # noqa: ASYNC251  # the loop stands still
    turned = loop.time()
    await asyncio.sleep(0.1)
    assert not called
    await until(lambda: bool(called))
    assert called[0] - turned >= 0.4


async def test_a_cancelled_timer_does_not_call() -> None:
    called: list[None] = []
    timer = TurningTimer(asyncio.get_running_loop(), 0.02, lambda: called.append(None))
    await asyncio.sleep(0.005)
    timer.cancel()
    timer.cancel()
    await asyncio.sleep(0.05)
    assert not called
