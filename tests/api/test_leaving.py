"""The end of a program of the async door that has not called destroy_process_group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    await dist.init_process_group()
    rank = dist.get_rank()
    never = dist.irecv(np.zeros(1), 1 - rank, tag=4)
    await dist.all_reduce(np.ones(3))
    if rank == 0 and sys.argv[1] == "error":
        raise KeyError("the program's own")

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["end", "error"])
def test_it_neither_hangs_nor_says_anything(
    tmp_path: Path, scaled: Callable[[float], float], how: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SOURCE)
    job = subprocess.run(
        [sys.executable, "-m", "aiodist", "run", "-n", "2", str(script), how],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    said = [line for line in job.stderr.splitlines() if line.startswith("[")]
    assert job.stdout == ""
    if how == "end":
        assert (job.returncode, said) == (0, [])
    else:
        assert job.returncode == 1
        assert sum("Traceback" in line for line in said) == 1
        assert said[-1] == '[0] KeyError: "the program\'s own"'
