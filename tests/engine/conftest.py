"""Ranks in one process, over every transport, with a limit on the whole."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import aiodist as dist
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.groups.world import World, current_world, use_world
from aiodist.testing.in_process import run_ranks
from tests.limits import scaled

RunRanks = Callable[..., Awaitable[list[Any]]]
Ranks = list["subprocess.Popen[str]"]

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def ranks_of(
    script: str,
    count: int,
    folder: Path,
    *arguments: object,
    python: Sequence[str] = (sys.executable,),
) -> Iterator[Ranks]:
    """``count`` processes that run ``script`` with a store's path, their rank and ``arguments``.

    All have ended afterwards, if need be by SIGKILL. ``python`` is the command that takes the script.
    """
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    command = [*python, str(path), str(folder / "store")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()  # reaps it, and closes its pipe


def run_over(transport: str) -> RunRanks:
    """``run_ranks`` over ``transport``; a deadlock fails in seconds."""

    async def run(size: int, fn: Callable[[int], Awaitable[Any]], **options: Any) -> list[Any]:
        async with asyncio.timeout(scaled(20)):
            return await run_ranks(size, fn, transport, **options)

    return run


@pytest.fixture(params=["inproc", "unix", "tcp", "shm"])
def ranks(request: pytest.FixtureRequest) -> RunRanks:
    """Over each transport."""
    return run_over(request.param)


@pytest.fixture(params=["inproc", "unix", "tcp"])
def streams(request: pytest.FixtureRequest) -> RunRanks:
    """Over streams alone, for what is about messages."""
    return run_over(request.param)


@pytest.fixture
def inproc() -> RunRanks:
    """Over queues only, for what does not depend on the transport."""
    return run_over("inproc")


def engine_of(group: Any = None) -> GroupEngine:
    """The engine of a group, of the default group where None."""
    return current_world().group_here(group)


async def outcome(work: Work[Any]) -> BaseException | None:
    """The error that an operation ends with, or None."""
    try:
        await work
    except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
        return error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            raise
        return error
    return None


def without_loop(function: Callable[[], Any]) -> Any:
    """As a thread calls it that drives the engine while the loop stands still."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        result = function()
        assert asyncio._get_running_loop() is None
        return result
    finally:
        asyncio._set_running_loop(loop)


def newcomer(fn: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
    """``fn()`` as in a process of its own."""

    async def alone() -> Any:
        use_world(World())
        try:
            return await fn()
        finally:
            if dist.is_initialized():
                await dist.destroy_process_group()

    return asyncio.create_task(alone(), context=contextvars.copy_context())
