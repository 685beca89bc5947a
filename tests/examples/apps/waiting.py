"""Waiting for what another process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.limits import scaled


async def until(holds: Callable[[], bool]) -> None:
    """Wait until ``holds()``."""
    async with asyncio.timeout(scaled(40)):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)
