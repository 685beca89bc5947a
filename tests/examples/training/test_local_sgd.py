"""Ranks that meet every K steps send a K-th of the bytes, learn as well, and resume to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Recipe = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(180)]

NAME = "local_sgd.py"


def test_two_ranks_learn_as_one_process_with_a_sixteenth_of_the_bytes(recipe: Recipe) -> None:
    local = recipe(2, NAME, "--epochs", "3")
    alone = recipe(1, NAME, "--epochs", "3", "--synchronous")
    assert local["steps"] == alone["steps"] == 3 * 32
    assert local["bytes_per_step"] == alone["bytes_per_step"] / 16 == 4 * 102_130 / 16
    assert local["top1"] > alone["top1"] - 1
    assert alone["top1"] > 90
    assert "bitwise the same on 2 ranks" in local["output"]
    # Every sixteenth step communicates, and no other.
    spent = local["communication_by_step"]
    assert [step for step, seconds in enumerate(spent, 1) if seconds > 0] == [*range(16, 97, 16)]


def test_local_sgd_resumes_to_the_same_bits(recipe: Recipe) -> None:
    # 8 steps an epoch: rounds of 3, 3 and 2. Each rank has an inner optimizer of its own.
    few = ("--arch", "mlp", "--limit", "512", "-b", "64", "--sync-every", "3")
    whole = recipe(2, NAME, *few, "--epochs", "3")
    first = recipe(2, NAME, *few, "--epochs", "1")
    resumed = recipe(2, NAME, *few, "--epochs", "3", "--resume", "checkpoint.pth.tar")
    assert resumed["sha256"] == whole["sha256"] != first["sha256"]
