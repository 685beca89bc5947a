"""The recipe for Slurm trains under srun and sbatch, and goes on after a requeue to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import REPOSITORY

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

RECIPES = REPOSITORY / "examples" / "training"
RECIPE = str(RECIPES / "slurm.py")
LONG = ("--epochs", "8", "--limit", "1000")
"""Long enough to be interrupted after its first epoch."""


def train(slurm: Cluster, folder: Path, step: tuple[str, ...], *arguments: str) -> dict[str, Any]:
    """Run the recipe by ``srun`` and return its summary; its output is ``["output"]``."""
    summary = folder / "summary.json"
    files = ("--summary", str(summary), "--checkpoint-dir", str(folder))
    ended = slurm.run("srun", *step, sys.executable, RECIPE, *files, *arguments)
    return json.loads(summary.read_text()) | {"output": ended.stdout + ended.stderr}


@pytest.mark.parametrize("nodes", [1, 2], ids=["one-node", "two-nodes"])
def test_four_ranks_learn_and_stay_equal(slurm: Cluster, tmp_path: Path, nodes: int) -> None:
    step = (f"-N{nodes}", "-n4", f"--ntasks-per-node={4 // nodes}")
    summary = train(slurm, tmp_path, step, "--epochs", "2")
    assert summary["ranks"] == 4
    assert summary["top1"] > 75  # chance is 10
    assert "bitwise the same on 4 ranks" in summary["output"]
    assert "has no secret" not in summary["output"]
    assert (tmp_path / "checkpoint.pth.tar").exists()


def test_ranks_meet_in_a_file_that_all_nodes_see(slurm: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    meet = ("--dist-file", str(shared / "meeting"))
    summary = train(slurm, tmp_path, ("-N2", "-n2"), "--epochs", "1", "--limit", "256", *meet)
    assert summary["ranks"] == 2
    assert list(shared.iterdir()) == []


def test_a_task_takes_its_place_from_slurm(slurm: Cluster) -> None:
    script = (
        "import os, torch, slurm; slurm.take_place(); "
        "print(*(os.environ[n] for n in ('SLURMD_NODENAME', 'LOCAL_RANK', 'OMP_NUM_THREADS')), "
        "torch.get_num_threads())"
    )
    environ = {"PYTHONPATH": f"{REPOSITORY}:{RECIPES}"}
    command = ("-N2", "-n4", sys.executable, "-c", script)
    two = slurm.run("srun", "--cpus-per-task=2", *command, environ=environ).stdout
    assert sorted(two.splitlines()) == ["n1 0 2 2", "n1 1 2 2", "n2 0 2 2", "n2 1 2 2"]
    one = slurm.run("srun", "--ntasks-per-node=2", *command, environ=environ).stdout
    assert sorted(one.splitlines()) == ["n1 0 1 1", "n1 1 1 1", "n2 0 1 1", "n2 1 1 1"]


@pytest.fixture(scope="module")
def uninterrupted(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint of the model after a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    summary = train(slurm, folder, ("-N2", "-n4", "--ntasks-per-node=2"), *LONG)
    assert isinstance(summary["sha256"], str)
    return summary["sha256"]


def ask_by_signal(slurm: Cluster, job: str) -> None:
    """Send what Slurm sends before the end of the job's time."""
    slurm.run("scancel", "--batch", "--signal=USR1", job)


def kill_rank_2(slurm: Cluster, job: str) -> None:
    for pid in slurm.processes("n2"):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"SLURM_PROCID=2" in environ and RECIPE.encode() in command:
            os.kill(pid, signal.SIGKILL)


def lose_second_node(slurm: Cluster, job: str) -> None:
    """The step fails with it, and the batch script puts the job back."""
    lose(slurm, job, "n2")


def lose_first_node(slurm: Cluster, job: str) -> None:
    """The batch script is lost with it: Slurm itself notices, and puts the job back."""
    lose(slurm, job, "n1")


def lose(slurm: Cluster, job: str, node: str) -> None:
    slurm.lose_node(node)
    slurm.wait_until(lambda: slurm.state(job)["Restarts"] != "0", "the job to be put back", 90)
    slurm.wait_until(lambda: slurm.is_down(node), f"Slurm to notice that {node} is lost", 90)
    slurm.start_node(node)


def interrupted(slurm: Cluster, folder: Path, interrupt: Callable[[Cluster, str], None]) -> str:
    """Submit the recipe, interrupt it after its first epoch, and return the model's fingerprint."""
    summary = folder / "summary.json"
    output = folder / "output"
    options = (f"--chdir={folder}", f"--output={output}")
    arguments = (str(RECIPES / "train.sbatch"), *LONG, "--summary", str(summary))
    job = slurm.submit(*options, *arguments, environ={"PYTHON": sys.executable})
    checkpoint = slurm.folder / "runs" / job / "checkpoint.pth.tar"
    slurm.wait_until(checkpoint.exists, "the first checkpoint", 120)
    interrupt(slurm, job)
    slurm.wait_until(lambda: slurm.state(job)["Restarts"] != "0", "the job to be put back", 60)
    slurm.start_soon(job)
    state = slurm.wait_for_job(job)
    assert state["ExitCode"] == "0:0", f"{state}\n{output.read_text()}\n{slurm.logs()}"
    fingerprint = json.loads(summary.read_text())["sha256"]
    assert isinstance(fingerprint, str)
    return fingerprint


@pytest.mark.parametrize("interrupt", [ask_by_signal, kill_rank_2], ids=["signal", "killed-rank"])
def test_a_job_goes_on_after_its_last_checkpoint_to_the_same_bits(
    slurm: Cluster,
    tmp_path: Path,
    uninterrupted: str,
    interrupt: Callable[[Cluster, str], None],
) -> None:
    assert interrupted(slurm, tmp_path, interrupt) == uninterrupted


@pytest.mark.parametrize("interrupt", [lose_second_node, lose_first_node], ids=["n2", "n1"])
def test_a_job_goes_on_when_a_lost_node_is_back(
    own_slurm: Cluster,
    tmp_path: Path,
    uninterrupted: str,
    interrupt: Callable[[Cluster, str], None],
) -> None:
    assert interrupted(own_slurm, tmp_path, interrupt) == uninterrupted


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--arch", "nope"), "--arch nope is unknown"),
        (("--resume", "nowhere.pth.tar"), "--resume nowhere.pth.tar is not there"),
        (("--dist-file", "/nowhere/meeting"), "is in a folder that n1 does not see"),
        (
            ("--dist-file", "meeting", "--dist-url", "tcp://n1:29500"),
            "--dist-file and --dist-url each say where the ranks meet",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_input_ends_the_step_with_one_sentence(
    slurm: Cluster, arguments: tuple[str, ...], says: str
) -> None:
    ended = slurm.run("srun", "-N2", "-n2", sys.executable, RECIPE, *arguments, check=False)
    assert ended.returncode == 2, ended.stderr
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_outside_of_a_step_the_recipe_says_how_to_start_it() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    ended = subprocess.run(
        [sys.executable, RECIPE],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "start it by: srun -n 4 python slurm.py" in ended.stderr
