"""The benchmark of the layers of an all_reduce over TCP runs, and has figures for every layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.benchmarks
def test_every_layer_has_its_figures() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.layers", "--count", "20", "--rounds", "1"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    figures = json.loads(run.stdout.splitlines()[-1])
    assert len(figures) == 6
    assert all(0 < each["median_us"] <= each["p99_us"] for each in figures.values())
