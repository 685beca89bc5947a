"""Ranks as processes, from a script, with nothing installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120


def run_job(script: Path, size: int, *arguments: str) -> str:
    """What ``size`` ranks of a script print; they all have to end well, in `SECONDS`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "aiodist", "run", "-n", str(size), str(script), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise AssertionError(f"{script.name} had not ended after {SECONDS} s:\n{said}") from None
    assert done.returncode == 0, done.stderr
    return done.stdout
