"""`breakpoint`: pdb on one rank, driven through a pipe; the others wait longer than their timeout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ASYNC = """
import asyncio
import aiodist as dist

async def main():
    await dist.init_process_group(timeout=0.5, init_timeout=60)
    value = 40 + dist.get_rank()
    await dist.breakpoint()
    print("went on", dist.get_rank(), value, flush=True)
    await dist.barrier(timeout=30)
    await dist.destroy_process_group()

asyncio.run(main())
"""

BLOCKING = """
import aiodist.sync as dist

dist.init_process_group(timeout=0.5, init_timeout=60)
value = 40 + dist.get_rank()
dist.breakpoint()
print("went on", dist.get_rank(), value, flush=True)
dist.barrier(timeout=30)
dist.destroy_process_group()
"""

pytestmark = pytest.mark.timeout(90)


def run(
    path: Path, script: str, commands: str, seconds: float, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` on ``ranks`` ranks with ``commands`` on rank 0's stdin."""
    path.write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "aiodist", "run", "-n", str(ranks), str(path)],
        input=commands,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        start_new_session=True,  # without a terminal
    )


@pytest.mark.parametrize("script", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_the_other_ranks_wait_without_a_limit_for_the_debugger(
    script: str, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    # Three times the group's timeout.
    commands = "p value + 1000\n!import time; time.sleep(1.5)\ncontinue\n"
    done = run(tmp_path / "script.py", script, commands, scaled(60))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(rank 0 Pdb)" in done.stdout
    assert "1040" in done.stdout
    assert "went on 0 40" in done.stdout
    assert "went on 1 41" in done.stdout


def test_quit_releases_the_others_and_raises(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    script = BLOCKING.replace(
        "dist.breakpoint()",
        "import bdb\ntry:\n    dist.breakpoint()\nexcept bdb.BdbQuit:\n    print('quit', flush=True)",
    )
    done = run(tmp_path / "script.py", script, "quit\n", scaled(60))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quit\n" in done.stdout
    assert "went on 1 41" in done.stdout


def test_a_rank_without_stdin_and_terminal_says_so(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    script = BLOCKING.replace("dist.breakpoint()", "dist.breakpoint(rank=1)")
    done = run(tmp_path / "script.py", script, "", scaled(60))
    assert "breakpoint() found no commands to read" in done.stderr
    assert "went on 0 40" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the launcher's terminal is found by /proc")
def test_a_rank_in_a_session_of_its_own_reads_the_terminal_of_its_launcher() -> None:
    read = "from aiodist.api.debugging import _commands; print(_commands().readline())"
    start = (
        "import subprocess as s, sys\n"
        "s.run([sys.executable, '-c', sys.argv[1]], stdin=s.DEVNULL, start_new_session=True)"
    )
    leader, follower = os.openpty()
    with os.fdopen(leader, "wb", 0) as terminal:
        terminal.write(b"continue\n")
        done = subprocess.run(
            [sys.executable, "-S", "-c", start, read],
            stdin=follower,
            capture_output=True,
            check=False,
        )
        os.close(follower)
    assert done.stdout == b"continue\n\n", done.stderr
