"""Clients of the inference services: each asks one question after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import aiohttp

from tests.examples.apps.waiting import until
from tests.limits import scaled

BROKEN = 0
"""The status of a request whose connection broke."""


@contextlib.asynccontextmanager
async def connected(*ports: int) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """A session for each of ``ports``. A request without an end raises after 40 s."""
    timeout = aiohttp.ClientTimeout(total=scaled(40))
    async with contextlib.AsyncExitStack() as stack:
        made = [aiohttp.ClientSession(f"http://127.0.0.1:{p}", timeout=timeout) for p in ports]
        yield [await stack.enter_async_context(session) for session in made]


async def ask(session: aiohttp.ClientSession, prompt: list[int], tokens: int = 4) -> Any:
    """Return the status of one request and its tokens."""
    try:
        async with session.post("/generate", json={"prompt": prompt, "tokens": tokens}) as response:
            found = (await response.json())["tokens"] if response.status == 200 else None
            return response.status, found
    except (aiohttp.ClientConnectionError, ConnectionResetError):
        return BROKEN, None


async def health(session: aiohttp.ClientSession, **wanted: Any) -> dict[str, Any]:
    """Wait until the service answers, with these facts."""
    async with asyncio.timeout(scaled(40)):
        while True:
            try:
                async with session.get("/health") as response:
                    facts: dict[str, Any] = await response.json()
                    if response.status == 200 and wanted.items() <= facts.items():
                        return facts
            except (aiohttp.ClientError, OSError):
                pass  # it does not listen yet, or not any more
            await asyncio.sleep(0.05)


class Load:
    """``async with Load(sessions) as load``: clients that ask until the end of the block.

    ``counts``: how many requests ended with each status. ``longest``: seconds of the longest one.
    At the end of the block every request has ended; an answer that differs from the first one to the
    same question raises.
    """

    def __init__(self, sessions: Sequence[aiohttp.ClientSession], clients: int = 8) -> None:
        self.counts: Counter[int] = Counter()
        self.longest = 0.0
        self._sessions = sessions
        self._clients = clients
        self._answers: dict[int, Any] = {}
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def answers(self, more: int) -> None:
        """Wait for ``more`` answers from now on."""
        wanted = self.counts[200] + more
        await until(lambda: self.counts[200] >= wanted)

    async def _ask(self) -> None:
        """After a connection that broke, the next question goes to the next session."""
        number = turn = 0
        while not self._is_over:
            question, begin = number % 50, time.monotonic()
            status, tokens = await ask(self._sessions[turn % len(self._sessions)], [question, 7])
            self.longest = max(self.longest, time.monotonic() - begin)
            self.counts[status] += 1
            if status == 200:
                assert self._answers.setdefault(question, tokens) == tokens
            else:
                turn += status == BROKEN
                await asyncio.sleep(0.02)
            number += 1
