"""The training recipes that use a GPU, on two ranks that share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.jobs import ROOT, run_job
from tests.images import write_images

RECIPE = Path(__file__).with_name("recipe.py")
ARGUMENTS = ("--arch", "mlp", "--image-size", "16", "-b", "16", "--epochs", "3", "--lr", "0.02")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "recipe",
    [
        ("distributed.py",),
        ("mixed_precision.py",),
        ("horovod_style.py",),
        ("local_sgd.py",),
        ("async_training.py", "--port", "0"),
        ("elastic.py",),
    ],
    ids=" ".join,
)
def test_replicas_learn_the_same(recipe: tuple[str, ...], tmp_path: Path) -> None:
    data = tmp_path / "images"
    write_images(data, ("red", "green", "blue"), 16)
    name, *options = recipe
    said = run_job(
        RECIPE,
        2,
        str(ROOT / "examples" / "training" / name),
        *options,
        *ARGUMENTS,
        "--data",
        str(data),
        "--checkpoint-dir",
        str(tmp_path),
    )
    assert said.count("on the GPU") == 2
    assert "replicas       bitwise the same on 2 ranks" in said
