"""The microbenchmarks run; their times are not checked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.processes import ROOT


@pytest.mark.benchmarks
@pytest.mark.slow
def test_microbenchmarks_run() -> None:
    command = [sys.executable, "-m", "benchmarks", "micro", "--benchmark-disable", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
