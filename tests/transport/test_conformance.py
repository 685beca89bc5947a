"""Every transport keeps the promises of transport/base.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiodist.testing.check_transport import TRANSPORT_CHECKS, Make
from aiodist.transport.base import Transport


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_promise(
    check: Callable[[Make], Awaitable[None]],
    make_pair: Callable[[], tuple[Transport, Transport]],
    scaled: Callable[[float], float],
) -> None:
    async def make() -> tuple[Transport, Transport]:
        return make_pair()

    async with asyncio.timeout(scaled(20)):
        await check(make)
