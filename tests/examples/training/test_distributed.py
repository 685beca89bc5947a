"""Stock DistributedDataParallel over backend "aiodist": learns, resumes, agrees with Gloo."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.examples.training.conftest import RECIPES, CompletedRun
from tests.images import write_images
from tests.warm_python import WarmPython

Recipes = Callable[..., list[CompletedRun]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


# Three epochs of a small model at a high rate: 92 % in less time than a process takes to start.
QUICK = ("--arch", "mlp", "--lr", "0.2")


def test_two_ranks_resume_to_the_same_bits_and_do_as_gloo_and_one_process(
    recipes: Recipes, tmp_path: Path
) -> None:
    latest = str(tmp_path / "2-0" / "checkpoint.pth.tar")
    first, resumed, whole, gloo = recipes(
        2,
        [
            ["distributed.py", *QUICK, "--epochs", "1"],
            ["distributed.py", *QUICK, "--epochs", "3", "--resume", latest],
            ["distributed.py", *QUICK, "--epochs", "3"],
            ["distributed.py", *QUICK, "--epochs", "3", "--dist-backend", "gloo"],
        ],
    )
    assert [each.codes for each in (first, resumed, whole, gloo)] == [[0, 0]] * 4
    assert resumed.summary["sha256"] == whole.summary["sha256"] != first.summary["sha256"]
    assert whole.summary["images"] == 1000
    assert whole.summary["top1"] > 88  # chance is 10
    assert whole.summary["top1"] == pytest.approx(gloo.summary["top1"], abs=0.2)
    assert whole.summary["bytes_per_step"] == 4 * (785 * 64 + 65 * 10)
    assert whole.summary["steps"] == 3 * 32
    assert whole.summary["communication_seconds"] > 0
    assert "bitwise the same on 2 ranks" in whole.output[0]
    assert re.search(r"epoch 3/3: 100%.* top-5 [\d.]+, \d+/s", whole.errors[0])
    assert (whole.output[1], whole.errors[1]) == ("", "")  # rank 0 alone speaks

    saved = torch.load(tmp_path / "2-2" / "checkpoint.pth.tar", weights_only=True)
    assert saved["epoch"] == 3
    assert saved["best_acc1"] == pytest.approx(whole.summary["top1"])
    assert {file.name for file in (tmp_path / "2-2").iterdir()} == {
        "checkpoint.pth.tar",
        "model_best.pth.tar",
        "summary.json",
    }

    # The checkpoint is of more ranks than there are now: --evaluate alone takes it.
    one, evaluated, refused = recipes(
        1,
        [
            ["dataparallel.py", *QUICK, "--epochs", "3"],
            ["dataparallel.py", *QUICK, "--evaluate", "--resume", latest],
            ["dataparallel.py", *QUICK, "--resume", latest],
        ],
    )
    assert one.summary["top1"] == pytest.approx(whole.summary["top1"], abs=1)
    assert evaluated.summary["top1"] == first.summary["top1"]
    assert refused.codes == [2]
    assert "was written by 2 ranks, and this job has 1; start as many" in refused.errors[0]


@pytest.mark.examples
def test_four_ranks_resume_to_the_same_bits_and_evaluate_exactly(
    recipes: Recipes, tmp_path: Path
) -> None:
    few = ("--arch", "cnn_bn", "--limit", "510")  # neither 4 nor a batch divides it

    def trio(number: int, script: str, *arguments: str) -> list[list[str]]:
        latest = str(tmp_path / f"4-{number}" / "checkpoint.pth.tar")
        train = [script, *few, *arguments, "--epochs"]
        return [[*train, "1"], [*train, "2", "--resume", latest], [*train, "2"]]

    gloo = ("--dist-backend", "gloo")
    best = str(tmp_path / "4-0" / "model_best.pth.tar")
    runs = recipes(
        4,
        [
            *trio(0, "distributed.py"),
            # Gloo rounds a sum by its place in the bucket, so all buckets have to be as before.
            *trio(3, "distributed.py", *gloo),
            *trio(6, "elastic.py", "--save-every", "100", *gloo),
            *trio(9, "local_sgd.py", "--synchronous", *gloo),
            ["evaluate.py", *few, "--compare", "--resume", best],
            ["from_scratch.py", *few, "--epochs", "1"],
            ["from_scratch.py", *few, "--epochs", "1", "--own-ring"],
        ],
    )
    assert [each.codes for each in runs] == [[0] * 4] * 15
    for number in range(0, 12, 3):
        first, resumed, whole = runs[number : number + 3]
        assert resumed.summary["sha256"] == whole.summary["sha256"] != first.summary["sha256"]

    exact = runs[12]
    assert exact.summary["images"] == 510
    assert exact.summary["top1"] == runs[0].summary["top1"]
    names = r"^(exact|one process|mean of means) +([\d.]+) %"
    found = dict(re.findall(names, exact.output[0], re.M))
    assert found["exact"] == found["one process"]
    assert found["mean of means"] != found["exact"]
    assert "of 512 images, some of them twice" in exact.output[0]

    library, ring = (each.summary for each in runs[13:])
    assert ring["loss"] == pytest.approx(library["loss"], rel=1e-3)  # they add up in another order


@pytest.mark.examples
def test_a_folder_of_images_with_loader_processes(recipes: Recipes, tmp_path: Path) -> None:
    write_images(tmp_path / "images", ("blue", "green", "red"), 16)
    latest = str(tmp_path / "2-0" / "checkpoint.pth.tar")
    images = ("--data", str(tmp_path / "images"), "--image-size", "32")
    few = (*images, "-b", "8", "--arch", "resnet", "-j", "1")
    runs = recipes(
        2,
        [
            ["distributed.py", *few, "--epochs", "1"],
            ["distributed.py", *few, "--epochs", "2", "--resume", latest],
            ["distributed.py", *few, "--epochs", "2", "--statistics", "statistics.csv"],
        ],
    )
    assert [each.codes for each in runs] == [[0, 0]] * 3
    assert runs[2].summary["images"] == 48
    assert runs[2].summary["top1"] > 60  # chance is 33
    # Random parts of the images come from the generators that the checkpoint has.
    assert runs[1].summary["sha256"] == runs[2].summary["sha256"]
    header, *rows = (tmp_path / "statistics.csv").read_text().splitlines()
    assert header.startswith("seconds,cpu_percent,memory_mib")
    assert all(0 <= float(row.split(",")[1]) <= 100 for row in rows)
    assert rows


@pytest.mark.examples
@pytest.mark.parametrize(
    "launcher",
    [
        ("aiodist.launch", "--nproc_per_node", "2"),
        ("torch.distributed.run", "--nproc-per-node", "2", "--no-python"),
    ],
    ids=lambda launcher: launcher[0],
)
def test_launchers_that_people_have(
    command: Callable[..., str],
    tmp_path: Path,
    launcher: tuple[str, ...],
    warm_python: WarmPython,
) -> None:
    given = (*QUICK, "--epochs", "1", "--limit", "256", "--checkpoint-dir", str(tmp_path))
    python = warm_python.command if "--no-python" in launcher else ()
    program = (*python, str(RECIPES / "distributed.py"), *given)
    output = command(sys.executable, "-m", *launcher, *program)
    assert "bitwise the same on 2 ranks" in output
