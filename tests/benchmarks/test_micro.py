"""The microbenchmarks still run; their times are nobody's business here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.processes import ROOT


@pytest.mark.slow
def test_microbenchmarks_run() -> None:
    command = [sys.executable, "-m", "benchmarks", "micro", "--benchmark-disable", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
