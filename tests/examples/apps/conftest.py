"""Starts a service as its operator does, and ends what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from tests.limits import scaled
from tests.warm_python import WarmPython

ROOT = Path(__file__).parents[3]
APPS = ROOT / "examples" / "apps"

Started = Callable[..., contextlib.AbstractAsyncContextManager["Job"]]


class Job:
    """A job under ``aiodist run``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def ranks(self) -> dict[int, psutil.Process]:
        """The processes of the ranks that live, by rank."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                rank = child.environ().get("RANK")
                if rank is not None and child.status() != psutil.STATUS_ZOMBIE:
                    found[int(rank)] = child
        return found

    def kill(self, rank: int) -> None:
        """End a rank without a word."""
        self.ranks()[rank].send_signal(signal.SIGKILL)

    async def printed(self, text: str) -> None:
        """Read the output up to a line with ``text`` in it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(scaled(60)):
            while text not in (line := (await self.process.stdout.readline()).decode()):
                assert line, f"the job ended without {text!r}"

    async def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the output."""
        output, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, output.decode()


@pytest.fixture
def ports() -> list[int]:
    """Free ports in a row, one for each of three ranks."""
    for first in range(20_000 + os.getpid() % 5_000 * 2, 32_000, 3):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(first, first + 3):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", number))
            return list(range(first, first + 3))
    raise OSError("no three free ports in a row")


@pytest.fixture
def start(warm_python: WarmPython) -> Started:
    """``async with start(ranks, app, *arguments, options=...) as job``.

    The ranks are forks of a Python that has imported torch, unless ``python`` is another command.
    """

    @contextlib.asynccontextmanager
    async def run(
        ranks: int,
        app: str,
        *arguments: str,
        options: tuple[str, ...] = (),
        python: tuple[str, ...] = warm_python.command,
    ) -> AsyncIterator[Job]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiodist", "run", "--no-python", "-n", str(ranks), *options),
            *(*python, str(APPS / app), *arguments),
            env=kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        job = Job(process)
        try:
            yield job
        finally:
            if process.returncode is None:
                left = psutil.Process(process.pid).children(recursive=True)
                for each in [psutil.Process(process.pid), *left]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                await process.wait()

    return run
