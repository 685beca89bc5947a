"""Times by each way beside torch's Gloo and beside plain copies; for ``docs/gpu.md``.

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
ROUNDS = {4 << 10: 100, 256 << 10: 100, 1 << 20: 100, 16 << 20: 30, 256 << 20: 8}
"""How often each number of bytes is measured."""

WAYS = {
    "ipc": ROUNDS,
    "ipc-always": {n: ROUNDS[n] for n in (4 << 10, 1 << 20)},  # what `ipc` leaves to the host
    "staging": ROUNDS,
}


def measure(way: str, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation on two ranks that are processes."""
    said = run_job(FIGURES, 2, way, str(nbytes), str(rounds))
    found: dict[str, list[float]] = json.loads(said.partition("figures ")[2].splitlines()[0])
    return found


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 100]


@pytest.mark.gpu
def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, us:")
        print("| way | bytes | operation | median | mean | p99 | GB/s | of Gloo's median |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for way, sizes in WAYS.items():
            for nbytes, rounds in sizes.items():
                found = measure(way, nbytes, rounds)
                for name, seconds in found.items():
                    median = statistics.median(seconds)
                    mean = statistics.mean(seconds)
                    gloo = found.get(f"Gloo's {name}")
                    ratio = f"{median / statistics.median(gloo):.2f}" if gloo else ""
                    times = " | ".join(f"{t * 1e6:.0f}" for t in (median, mean, p99(seconds)))
                    speed = f"{nbytes / median / 1e9:.2f}"
                    print(f"| {way} | {nbytes} | {name} | {times} | {speed} | {ratio} |")


def test_the_script_runs_without_a_gpu() -> None:
    figures = measure("memfd", 1 << 16, 2)
    assert {name: len(seconds) for name, seconds in figures.items()} == {
        "broadcast": 2,
        "all_reduce": 2,
        "all_gather": 2,
    }
    assert all(second > 0 for seconds in figures.values() for second in seconds)
