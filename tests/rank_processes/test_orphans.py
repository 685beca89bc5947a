"""Rank processes end with the program that started them, however it ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiodist.rank_processes.control import FrameKind, encode, pickler
from aiodist.rank_processes.rank_process import _program
from aiodist.rank_processes.worker import ORPHANED

REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
import asyncio, time
import aiodist

def start():
    import subprocess
    return subprocess.Popen(["sleep", "1000"]).pid

async def main():
    async with aiodist.cluster(2) as ranks:
        print(*ranks.pids, *await ranks.run(start), flush=True)
        await ranks.run(time.sleep, 1000)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ranks_and_what_they_have_started_end_when_their_program_is_killed(
    scaled: Callable[[float], float],
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        text=True,
    )
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert len(pids) == 4
    limit = time.monotonic() + scaled(10)
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < limit, pids
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_a_rank_ends_when_its_program_ends_with_an_answer_unread(
    scaled: Callable[[float], float],
) -> None:
    dumps, _ = pickler()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _program(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        mine.sendall(encode(FrameKind.CALL, dumps((len, ("abc",), {}))))
        assert select.select([mine], [], [], scaled(30)) == ([mine], [], [])
    try:
        assert process.wait(scaled(10)) == ORPHANED
    finally:
        process.kill()
        process.wait()
