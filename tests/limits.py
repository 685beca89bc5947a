"""Waits of tests, and their limits, which a slow machine scales by AIODIST_TEST_TIMEOUT_SCALE."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable

import pytest

SCALE_VARIABLE = "AIODIST_TEST_TIMEOUT_SCALE"


def timeout_scale() -> float:
    """The factor on every time limit of the suite: above 1 on a slow or busy machine."""
    text = os.environ.get(SCALE_VARIABLE, "1")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise pytest.UsageError(f"{SCALE_VARIABLE} must be a positive number, not {text!r}")
    return scale


def scaled(seconds: float) -> float:
    """A limit on what usually ends much sooner: ``asyncio.timeout(scaled(5))``."""
    return seconds * timeout_scale()


async def until(condition: Callable[[], object]) -> None:
    """Return when ``condition()`` holds, for a state that no event tells of.

    It is asked in each turn of the loop at first, and after some turns every millisecond.
    """
    turns = 0
    async with asyncio.timeout(scaled(30)):
        while not condition():
            await asyncio.sleep(0 if turns < 1000 else 1e-3)
            turns += 1


def thread_ends(name: str) -> None:
    """Join the threads of this ``name``. AssertionError where one goes on."""
    threads = [thread for thread in threading.enumerate() if thread.name == name]
    for thread in threads:
        thread.join(scaled(20))
    assert not any(thread.is_alive() for thread in threads)
