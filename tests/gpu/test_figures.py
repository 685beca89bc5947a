"""Bandwidth by each way beside the plain copies, which are the floor; for ``docs/gpu.md``.

It prints the figures (``-s`` shows them) and judges none of them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.gpu.jobs import run_job

FIGURES = Path(__file__).with_name("figures.py")
NBYTES = 256 << 20
ROUNDS = 7


def measure(way: str, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation on two ranks that are processes."""
    said = run_job(FIGURES, 2, way, str(nbytes), str(rounds))
    found: dict[str, list[float]] = json.loads(said.partition("figures ")[2].splitlines()[0])
    return found


def timed(copy: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    copy()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@pytest.mark.gpu
def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    device = torch.ones(NBYTES // 4, device="cuda")
    other = torch.empty_like(device)
    host = torch.ones(NBYTES // 4, pin_memory=True)
    figures = {
        "device to host": [timed(lambda: host.copy_(device)) for _ in range(ROUNDS)],
        "host to device": [timed(lambda: device.copy_(host)) for _ in range(ROUNDS)],
        "device to device": [timed(lambda: other.copy_(device)) for _ in range(ROUNDS)],
    }
    for way in ("ipc", "staging"):
        for name, seconds in measure(way, NBYTES, ROUNDS).items():
            figures[f"{name} of two ranks, {way}"] = seconds
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {NBYTES >> 20} MiB:")
        for name, seconds in figures.items():
            print(f"  {name}: {NBYTES / statistics.median(seconds) / 1e9:.2f} GB/s")


def test_the_script_runs_without_a_gpu() -> None:
    figures = measure("memfd", 1 << 16, 2)
    assert {name: len(seconds) for name, seconds in figures.items()} == {
        "broadcast": 2,
        "all_reduce": 2,
        "all_gather": 2,
    }
    assert all(second > 0 for seconds in figures.values() for second in seconds)
