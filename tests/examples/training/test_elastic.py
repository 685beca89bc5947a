"""A job whose rank is killed makes every step, in new processes and among the ranks that are left."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.training.conftest import RECIPES
from tests.images import write_images
from tests.limits import scaled
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(180)]

FEW = ("--arch", "mlp", "--limit", "512", "-b", "64", "--epochs", "2", "--summary", "summary.json")
STEPS = 16


@pytest.fixture(autouse=True)
def _no_process_left(tmp_path: Path) -> Iterator[None]:
    """All that a job starts has its working directory in ``tmp_path``, and ends with the job.

    A rank is a fork of another process, which ends it a moment after the launcher has been told so.
    """
    yield
    limit = time.monotonic() + scaled(10)
    while left := processes_in(tmp_path):
        assert time.monotonic() < limit, left
        time.sleep(0.01)


def processes_in(folder: Path) -> list[str]:
    """Return the commands of the processes whose working directory is ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")) == folder:
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # it has ended, or is the kernel's own
    return found


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def test_a_restart_gives_the_bits_of_a_run_without_one(
    launch: Callable[..., str],
    command: Callable[..., str],
    tmp_path: Path,
    warm_python: WarmPython,
) -> None:
    write_images(tmp_path / "images", ("red", "green"), 32)  # of which random parts are cut
    images = ("--data", str(tmp_path / "images"), "--image-size", "16", "-j", "1", "-b", "8")
    few = (*FEW, *images)
    script = RECIPES / "elastic.py"
    output = launch(2, script, *few)
    assert f"steps          {STEPS}\n" in output
    assert "restarted" not in output
    whole = summary(tmp_path)["sha256"]

    output = launch(2, script, *few, "--kill", "11:1", options=["--max-restarts", "1"])
    assert "restarted      with step 11\n" in output
    assert f"steps          {STEPS}\n" in output
    assert summary(tmp_path)["steps"] == STEPS - 11  # of the second life
    assert summary(tmp_path)["sha256"] == whole

    # Rank 0 dies, at which the ranks had met, and the last checkpoint is three steps old.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    options = ("--max-restarts", "1", "--no-python", *warm_python.command)
    arguments = (*few, "--kill", "11:0", "--save-every", "4")
    output = command(sys.executable, *torchrun, *options, str(script), *arguments)
    assert "restarted      with step 8\n" in output
    assert f"steps          {STEPS}\n" in output
    assert summary(tmp_path)["sha256"] == whole


def test_survivors_repeat_the_step_whichever_rank_dies(
    launch: Callable[..., str], tmp_path: Path
) -> None:
    three, two = 3 * (64 // 3), 64  # images in a step
    left_over = 512 - 5 * three
    steps = 5 + -(-left_over // two) + 512 // two
    digests = set()
    for killed, left in ((0, (1, 2)), (2, (0, 1))):
        output = launch(
            3,
            RECIPES / "elastic_shrink.py",
            *FEW,
            *("--kill", f"5:{killed}"),
            options=["--keep-going"],
            code=137,
        )
        assert f"step 5: PeerLostError, left are ranks {left}\n" in output
        assert f"steps          {steps}\n" in output
        assert "bitwise the same on 2 ranks" in output
        digests.add(summary(tmp_path)["sha256"])
    # In both runs three ranks make five steps and two ranks make the others, on the same images.
    assert len(digests) == 1


def test_without_a_loss_both_recipes_give_the_same_bits(
    launch: Callable[..., str], tmp_path: Path
) -> None:
    digests = []
    for name in ("elastic.py", "elastic_shrink.py"):
        launch(2, RECIPES / name, *FEW)
        digests.append(summary(tmp_path)["sha256"])
        assert summary(tmp_path)["steps"] == STEPS
    assert digests[0] == digests[1]
