"""Runs scripts as a user would: under the launcher, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

REPOSITORY = Path(__file__).parents[2]

Command = Callable[..., str]
Launch = Callable[..., str]


@pytest.fixture
def command(scaled: Callable[[float], float], tmp_path: Path) -> Command:
    """``command(program, *arguments, code=0)``: what it printed; another exit code is an error.

    It runs in ``tmp_path``, and nothing of a job around the tests reaches it.
    """

    def run(*arguments: str, code: int = 0) -> str:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIODIST_", "TORCHELASTIC_", "MASTER_"))
        }
        job = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=kept | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(100),
            check=False,
        )
        assert job.returncode == code, job.stdout + job.stderr
        return job.stdout + job.stderr

    return run


@pytest.fixture
def launch(command: Command, warm_python: WarmPython) -> Launch:
    """``launch(ranks, script, *arguments)``: what the job printed; a job that fails is an error.

    ``options``: the launcher's own. ``code``: the exit code that the job has to have. The ranks do not
    import torch anew.
    """

    def run(
        ranks: int, script: Path, *arguments: str, options: Sequence[str] = (), code: int = 0
    ) -> str:
        job = ("run", "--no-python", "-n", str(ranks), *options)
        program = (*warm_python.command, str(script), *arguments)
        return command(sys.executable, "-m", "aiodist", *job, *program, code=code)

    return run
