"""Ranks at work for a while: memory, descriptors, threads and tasks stay what they were.

Four ranks for seconds by default; eight for five minutes with ``-m soak`` (``make soak``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cells import transports
from tests.faults.conftest import ROOT
from tests.faults.soak import Sample, verdict

REPORT_VARIABLE = "AIODIST_SOAK_REPORT"
"""Where it names a file, what was counted is written there."""


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        pytest.param(4, 4, id="short", marks=pytest.mark.timeout(120)),
        pytest.param(8, 300, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_nothing_grows(
    ranks: int, seconds: int, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    command = ["aiodist", "run", "-n", str(ranks), "-m", "tests.faults.soak"]
    job = subprocess.run(
        [sys.executable, "-m", *command, "--seconds", str(seconds), "--output", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=scaled(seconds + 90),
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for rank, report in enumerate(reports):
        assert report["grown"] == [], f"rank {rank}: {report['grown']}"
        assert report["operations"] >= 40
        assert report["shares"] == ("shm" in transports())
    if place := os.environ.get(REPORT_VARIABLE):
        Path(place).write_text(json.dumps(summary(reports), indent=1) + "\n")


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the reports of all ranks as the page does."""
    first = [report["samples"][len(report["samples"]) // 4] for report in reports]
    last = [report["samples"][-1] for report in reports]
    return {
        "shares": all(report["shares"] for report in reports),
        "operations": reports[0]["operations"],
        "seconds": max(each["seconds"] for each in last),
        **{
            f"{what}_{when}": max(each[what] for each in part)
            for when, part in (("early", first), ("late", last))
            for what in ("rss_bytes", "descriptors", "segments", "threads", "tasks")
        },
    }


def _samples(count: int, **slopes: float) -> list[Sample]:
    usual = {"rss_bytes": 50e6, "descriptors": 20, "segments": 8, "threads": 3, "tasks": 5}
    return [
        {what: base + slopes.get(what, 0) * number for what, base in usual.items()}
        for number in range(count)
    ]


def test_flat_figures_are_called_flat() -> None:
    assert verdict(_samples(40)) == []
    assert verdict(_samples(2)) == []
    assert verdict(_samples(40, descriptors=-0.5)) == []


@pytest.mark.parametrize(
    ("what", "slope"),
    [("descriptors", 0.5), ("segments", 1), ("threads", 1), ("tasks", 1), ("rss_bytes", 1e6)],
)
def test_growth_is_found(what: str, slope: float) -> None:
    grown = verdict(_samples(40, **{what: slope}))
    assert len(grown) == 1
    assert ("memory" if what == "rss_bytes" else what) in grown[0]
