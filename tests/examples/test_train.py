"""The training job learns, with any number of ranks, and its replicas stay the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def accuracy(output: str) -> float:
    found = re.search(r"accuracy +([\d.]+)% of 1000 images", output)
    assert found, output
    return float(found[1])


def digest(output: str) -> str:
    found = re.search(r"bitwise the same on \d ranks? \(sha256 ([0-9a-f]{12})\)", output)
    assert found, output
    return found[1]


def check(output: str, ranks: int) -> None:
    """Two epochs with ``ranks`` ranks have taught it something."""
    assert f"[0] {ranks} rank" in output
    assert f"{4000 // ranks:,} images each" in output
    assert accuracy(output) > 80  # chance is 10
    assert "epoch 2/2: 100%" in output
    assert re.search(r"communication +[\d.]+ s of that \(\d+%\)", output)
    assert "[1]" not in output  # only rank 0 speaks


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.examples), 2])
def test_ranks_learn(launch: Callable[..., str], ranks: int) -> None:
    check(launch(ranks, SCRIPT, "--epochs", "2"), ranks)


@pytest.mark.examples
def test_the_seed_decides_what_two_ranks_learn(launch: Callable[..., str]) -> None:
    outputs = [launch(2, SCRIPT, "--epochs", "2", "--seed", "5") for _ in range(2)]
    check(outputs[0], 2)
    assert digest(outputs[0]) == digest(outputs[1])
