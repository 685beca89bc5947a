"""Bandwidth by each way beside plain copies, of which one is the floor; for ``docs/gpu.md``.

It prints the figures (``-s`` shows them) and judges none of them.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from tests.gpu.jobs import run_job

FIGURES = Path(__file__).with_name("figures.py")
NBYTES = 256 << 20
ROUNDS = 7
FLOORS = {"ipc": "plain device to device", "staging": "plain device to host"}


def measure(way: str, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation on two ranks that are processes."""
    said = run_job(FIGURES, 2, way, str(nbytes), str(rounds))
    found: dict[str, list[float]] = json.loads(said.partition("figures ")[2].splitlines()[0])
    return found


@pytest.mark.gpu
def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {NBYTES >> 20} MiB:")
        for way in ("ipc", "staging"):
            print(f"  by {way}:")
            medians = {
                name: statistics.median(seconds)
                for name, seconds in measure(way, NBYTES, ROUNDS).items()
            }
            floor = medians[FLOORS[way]]
            for name, seconds in medians.items():
                ratio = seconds / floor
                print(
                    f"    {name}: {NBYTES / seconds / 1e9:.2f} GB/s, {ratio:.2f} of the floor's time"
                )


def test_the_script_runs_without_a_gpu() -> None:
    figures = measure("memfd", 1 << 16, 2)
    assert {name: len(seconds) for name, seconds in figures.items()} == {
        "broadcast": 2,
        "all_reduce": 2,
        "all_gather": 2,
    }
    assert all(second > 0 for seconds in figures.values() for second in seconds)
