"""The recipes beside distributed.py learn, and their replicas stay equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from aiodist.launch.ports import reserve_port
from tests.examples.training.conftest import RECIPES, CompletedRun
from tests.warm_python import WarmPython

Recipes = Callable[..., list[CompletedRun]]

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(120)]


def test_recipes_learn_what_one_process_learns(recipes: Recipes, tmp_path: Path) -> None:
    quick = ("--arch", "mlp", "--lr", "0.2", "--epochs", "4")
    scaled = ("mixed_precision.py", "--arch", "mlp", "--limit", "256", "--dtype", "float16")
    half = tmp_path / "2-1" / "checkpoint.pth.tar"
    runs = recipes(
        2,
        [
            ["mixed_precision.py", *quick],
            [*scaled, "--epochs", "1"],
            [*scaled, "--epochs", "2", "--resume", str(half)],
            [*scaled, "--epochs", "2"],
            ["from_scratch.py", *quick],
            ["from_scratch.py", *quick, "--own-ring"],
            ["from_scratch.py", *quick, "--dist-backend", "torch:gloo"],
            ["mixed_precision.py", *quick, "--epochs", "1", "--compression", "bf16"],
        ],
    )
    (one,) = recipes(1, [["dataparallel.py", *quick]])
    assert one.summary["top1"] > 90
    assert [each.codes for each in runs] == [[0, 0]] * 8
    mixed, _, resumed, whole, scratch, ring, gloo, bf16 = (each.summary for each in runs)
    for summary in (mixed, scratch, ring, gloo):
        assert summary["top1"] == pytest.approx(one.summary["top1"], abs=1)
    assert mixed["bytes_per_step"] == bf16["bytes_per_step"] == scratch["bytes_per_step"] / 2
    assert resumed["sha256"] == whole["sha256"]
    assert torch.load(half, weights_only=True)["scaler"]["scale"] > 1  # a GradScaler goes on, too
    assert ring["sha256"] == scratch["sha256"]  # the sum of two numbers has no order


def test_spawn_starts_the_ranks_of_two_machines(
    command: Callable[..., str], tmp_path: Path, warm_python: WarmPython
) -> None:
    few = ("--multiprocessing-distributed", "--nprocs", "1", "--epochs", "1", "--limit", "256")

    def machine(rank: int) -> str:
        meet = ("--world-size", "2", "--rank", str(rank), "--dist-url", f"tcp://127.0.0.1:{port}")
        script = str(RECIPES / "spawned.py")
        folder = ("--checkpoint-dir", str(tmp_path / str(rank)))
        # A fork starts the rank, which is a process that imports all anew.
        job = ("env", "AIODIST_SECRET=known to both", *warm_python.command, script)
        return command(*job, *few, *meet, *folder)

    with reserve_port() as reserved, ThreadPoolExecutor(2) as machines:
        port = reserved.port
        first, second = machines.map(machine, range(2))
    assert "bitwise the same on 2 ranks" in first
    assert "bitwise" not in second
    assert (tmp_path / "0" / "checkpoint.pth.tar").exists()
    assert not (tmp_path / "1").exists()  # rank 0 alone writes


def test_spawn_hands_on_the_exit_code(command: Callable[..., str], warm_python: WarmPython) -> None:
    script = str(RECIPES / "spawned.py")
    output = command(*warm_python.command, script, "--arch", "vgg", code=2)
    assert output.count("error: --arch vgg is unknown") == 1
    assert "Traceback" not in output
