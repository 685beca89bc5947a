"""A recipe in Horovod's style learns as one process does, with uneven batches, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.training.conftest import CompletedRun

Recipes = Callable[..., list[CompletedRun]]

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(120)]


def test_two_ranks_learn_what_one_process_learns(recipes: Recipes) -> None:
    epochs = ("--arch", "mlp", "--lr", "0.2", "--epochs", "4")
    plain, parts, narrow = recipes(
        2,
        [
            ["horovod_style.py", *epochs],
            ["horovod_style.py", *epochs, "--batches-per-allreduce", "2"],
            ["horovod_style.py", *epochs, "--compression", "fp16"],
        ],
    )
    (alone,) = recipes(1, [["dataparallel.py", *epochs]])
    one = alone.summary
    assert one["top1"] > 90
    for ended in (plain, parts, narrow):
        assert ended.codes == [0, 0], ended.errors
        assert ended.summary["top1"] == pytest.approx(one["top1"], abs=1)
        assert ended.output[1] == ""  # only rank 0 speaks
    assert narrow.summary["bytes_per_step"] == plain.summary["bytes_per_step"] / 2


def test_ranks_with_a_batch_less_join_and_stay_equal(recipes: Recipes, tmp_path: Path) -> None:
    """Two ranks have 85 of 254 images, in 3 batches of at most 42; the third has 84, in 2 batches."""
    few = ("--limit", "254", "--batch-size", "126", "--arch", "cnn_bn")
    latest = str(tmp_path / "3-0" / "checkpoint.pth.tar")
    first, resumed, whole, bad = recipes(
        3,
        [
            ["horovod_style.py", *few, "--epochs", "1"],
            ["horovod_style.py", *few, "--epochs", "2", "--resume", latest],
            ["horovod_style.py", *few, "--epochs", "2"],
            ["horovod_style.py", "--arch", "vgg"],
        ],
    )
    for ended in (first, resumed, whole):
        assert ended.codes == [0, 0, 0], ended.errors
        assert "bitwise the same on 3 ranks" in ended.output[0]
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert first.summary["steps"] == 2  # the mean of 3, 3 and 2, rounded down
    assert bad.codes == [2, 2, 2]
    assert "error: --arch vgg is unknown" in bad.errors[0]
