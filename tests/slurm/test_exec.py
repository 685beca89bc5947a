"""Programs that know torch's own API alone, and nodes whose names cannot be looked up."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import rank_command, reports

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

TORCH = """
import hashlib, json, os, torch
import torch.distributed as dist
def hash_of(secret):
    return len(secret), hashlib.sha256(secret.encode()).hexdigest()
dist.init_process_group("aiodist")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
secret = os.environ.get("AIODIST_SECRET", "")
facts = {"rank": dist.get_rank(), "step": "", "sum": total.item(), "secret": hash_of(secret)}
print(json.dumps(facts | {name: os.environ[name] for name in names}), flush=True)
dist.destroy_process_group()
"""


def without_names(folder: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    """``command`` where /etc/hosts knows localhost alone, as in many containers."""
    hosts = folder / "no-hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    script = f"mount --bind {hosts} /etc/hosts && exec {shlex.join(command)}"
    return ("unshare", "--mount", "sh", "-c", script)


@pytest.mark.parametrize("named", [True, False], ids=["with names", "without names"])
def test_torchs_own_api_meets_under_srun(slurm: Cluster, named: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH)
    command = (sys.executable, "-m", "aiodist", "exec", sys.executable, str(script))
    if not named:
        command = without_names(tmp_path, command)
    found = reports(slurm.run("srun", "-N2", "-n3", "--ntasks-per-node=2", *command).stdout)
    first = "n1" if named else slurm.address("n1")
    assert [(r["rank"], r["sum"], r["MASTER_ADDR"]) for r in found] == [
        (rank, 6.0, first) for rank in range(3)
    ], json.dumps(found)
    assert [(r["LOCAL_RANK"], r["LOCAL_WORLD_SIZE"]) for r in found] == [
        ("0", "2"),
        ("1", "2"),
        ("0", "1"),
    ]
    assert {r["OMP_NUM_THREADS"] for r in found} == {"1"}
    assert found[0]["secret"] == found[1]["secret"] == found[2]["secret"]
    assert found[0]["secret"][0] == 64


def test_exec_leaves_variables_that_are_set(slurm: Cluster) -> None:
    show = "echo $AIODIST_SECRET $OMP_NUM_THREADS"
    command = (sys.executable, "-m", "aiodist", "exec", "sh", "-c", show)
    environ = {"AIODIST_SECRET": "mine"}
    found = slurm.run("srun", "-n2", "--cpus-per-task=2", *command, environ=environ).stdout
    assert found.splitlines() == ["mine 2"] * 2


def test_ranks_meet_where_node_names_cannot_be_looked_up(slurm: Cluster, tmp_path: Path) -> None:
    command = without_names(tmp_path, rank_command())
    found = reports(slurm.run("srun", "-N2", "-n2", *command).stdout)
    assert [(r["rank"], r["sum"]) for r in found] == [(0, 3.0), (1, 3.0)]
