"""Ranks that srun starts meet with nothing passed by hand, step by step and job by job."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import batch, rank_command, reports

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

RANK = shlex.join(rank_command())


@pytest.mark.parametrize(
    ("nodes", "placed"), [(1, ["n1"] * 4), (2, ["n1", "n1", "n2", "n2"])], ids=["one", "two"]
)
def test_four_ranks_meet_on_nodes(slurm: Cluster, nodes: int, placed: list[str]) -> None:
    split = f"--ntasks-per-node={4 // nodes}"
    found = reports(slurm.run("srun", f"-N{nodes}", "-n4", split, *rank_command()).stdout)
    assert [report["rank"] for report in found] == [0, 1, 2, 3]
    assert [report["node"] for report in found] == placed
    assert {(report["size"], report["sum"]) for report in found} == {(4, 10.0)}


def test_steps_of_an_allocation_meet_each_for_itself(slurm: Cluster, tmp_path: Path) -> None:
    """One step after another, and two at the same time on the same nodes."""
    output = slurm.folder / "steps.out"
    script = batch(
        tmp_path,
        f"srun -N2 -n3 {RANK}",
        f"srun -N2 -n2 --exact {RANK} &",
        f"srun -N2 -n2 --exact {RANK} &",
        "wait",
        options={"nodes": "2", "ntasks-per-node": "2", "output": str(output)},
    )
    state = slurm.wait_for_job(slurm.submit(script))
    assert state["ExitCode"] == "0:0", output.read_text()
    found = reports(output.read_text())
    assert [(r["step"], r["rank"], r["size"], r["sum"]) for r in found] == [
        *(("0", rank, 3, 6.0) for rank in range(3)),
        *((step, rank, 2, 3.0) for step in ("1", "2") for rank in range(2)),
    ]


def test_elements_of_a_job_array_are_jobs_of_their_own(slurm: Cluster, tmp_path: Path) -> None:
    output = slurm.folder / "array-%a.out"
    options = {"array": "0-1", "ntasks": "2", "nodes": "1", "output": str(output)}
    job = slurm.submit(batch(tmp_path, f"srun {RANK}", options=options))
    slurm.wait_until(slurm.is_idle, f"the array {job} to end", 120)
    found = [reports((slurm.folder / f"array-{n}.out").read_text()) for n in range(2)]
    assert [[(r["rank"], r["sum"]) for r in element] for element in found] == [
        [(0, 3.0), (1, 3.0)]
    ] * 2
    assert found[0][0]["job"] != found[1][0]["job"]


def test_components_of_a_heterogeneous_step_are_one_world(slurm: Cluster) -> None:
    parts = ("-N1", "-n1", *rank_command(), ":", "-N1", "-n2", *rank_command())
    found = reports(slurm.run("srun", *parts).stdout)
    assert [(r["rank"], r["size"], r["sum"]) for r in found] == [(n, 3, 6.0) for n in range(3)]
    assert found[0]["node"] != found[1]["node"] == found[2]["node"]


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [("--fail", 7, "Exited with exit code 7"), ("--kill", 137, "task 2: Killed")],
)
def test_a_lost_rank_ends_the_step(slurm: Cluster, how: str, code: int, says: str) -> None:
    """srun names the task and ends with the code of it; the others say which rank they missed."""
    ended = slurm.run("srun", "-N2", "-n4", *rank_command(how, "2"), check=False)
    assert ended.returncode == code, ended.stderr
    assert says in ended.stderr
    assert "PeerLostError" in ended.stderr
    assert "rank 2" in ended.stderr
