"""Runs scripts as a user would: under the launcher, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

Launch = Callable[..., str]


@pytest.fixture
def launch(scaled: Callable[[float], float], tmp_path: Path) -> Launch:
    """``launch(ranks, script, *arguments)``: what the job printed; a job that fails is an error.

    ``options``: the launcher's own.
    """

    def run(ranks: int, script: Path, *arguments: str, options: Sequence[str] = ()) -> str:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIODIST_", "TORCHELASTIC_", "MASTER_"))
        }
        launcher = (sys.executable, "-m", "aiodist", "run", "-n", str(ranks), *options)
        job = subprocess.run(
            [*launcher, str(script), *arguments],
            cwd=tmp_path,
            env=kept | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(100),
            check=False,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        return job.stdout + job.stderr

    return run
