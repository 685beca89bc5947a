"""A step that was given no secret shares one by MUNGE, which other users cannot read."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.errors import DistStoreError
from aiodist.rendezvous.munge import Munge, MungeError, StepSecret
from aiodist.rendezvous.slurm import job_port
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import rank_command, reports
from tests.slurm.foreign_step import NOBODY

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

OPEN = "this job has no secret"
WITHOUT_MUNGE = ("env", "PATH=/nonexistent")


def munge_of(slurm: Cluster) -> Munge:
    found = Munge.find(slurm.environ)
    assert found is not None
    assert found.socket == f"{slurm.folder}/munge.socket"
    return found


def test_a_step_without_a_secret_has_one(slurm: Cluster) -> None:
    ended = slurm.run("srun", "-N2", "-n2", *rank_command())
    assert [report["sum"] for report in reports(ended.stdout)] == [3.0, 3.0]
    assert OPEN not in ended.stderr


def test_without_munge_a_step_runs_and_says_that_it_is_open(slurm: Cluster) -> None:
    ended = slurm.run("srun", "-N2", "-n2", *WITHOUT_MUNGE, *rank_command())
    assert [report["sum"] for report in reports(ended.stdout)] == [3.0, 3.0]
    assert OPEN in ended.stderr


@pytest.mark.parametrize(
    ("without", "says"),
    [
        (0, "MUNGE fails on rank 0's node"),
        (1, "this rank cannot read it: unmunge is not installed"),
    ],
)
def test_munge_on_one_rank_alone_is_an_error(slurm: Cluster, without: int, says: str) -> None:
    rank = shlex.join(rank_command())
    script = f"test $SLURM_PROCID != {without} || export PATH=/nonexistent; exec {rank}"
    ended = slurm.run("srun", "-K", "-N2", "-n2", "/bin/sh", "-c", script, check=False)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert "set AIODIST_SECRET" in ended.stderr


def test_another_user_is_not_let_in(slurm: Cluster, tmp_path: Path) -> None:
    """It meets rank 0 while rank 1 has not come, and cannot read the credential it is told."""
    go = tmp_path / "go"
    rank = shlex.join(rank_command())
    script = f"test $SLURM_PROCID = 0 || until test -e {go}; do sleep 0.1; done; exec {rank}"
    with slurm.started("srun", "-N2", "-n2", "sh", "-c", script) as step:
        slurm.wait_until(lambda: not slurm.is_idle(), "the step to start", 30)
        job = slurm.run("squeue", "-h", "-o", "%A").stdout.strip()
        address = (slurm.address("n1"), str(job_port(job, "0")))
        tries = slurm.run(sys.executable, "-m", "tests.slurm.foreign_step", *address).stdout
        go.touch()
        stdout, stderr = step.communicate()
    assert step.returncode == 0, stderr
    assert [report["sum"] for report in reports(stdout)] == [3.0, 3.0]
    guessed, asked = tries.splitlines()
    assert "it does not know this job's secret" in guessed
    assert "unmunge failed" in asked
    assert "Unauthorized credential" in asked


def test_a_credential_of_another_user_is_refused(slurm: Cluster) -> None:
    """Another user's store may listen in the place of rank 0's, and seal a secret of its own."""
    munge = munge_of(slurm)
    seal = ("munge", f"--socket={munge.socket}", "--restrict-uid=0", "--string=known to a stranger")
    forged = subprocess.run(seal, user=NOBODY, group=NOBODY, capture_output=True, check=True)
    with pytest.raises(DistStoreError, match=f"was made by user {NOBODY}"):
        asyncio.run(StepSecret(munge).learn(forged.stdout.strip()))


async def test_all_ranks_of_a_node_read_one_credential(slurm: Cluster) -> None:
    first = StepSecret(munge_of(slurm))
    await first.make()
    credential = await first.seal()
    assert len(first.value) == 64
    assert first.value not in credential
    assert await first.seal() == credential
    for _ in range(2):
        assert await StepSecret(munge_of(slurm)).learn(credential) == first.value


def test_an_invalid_credential_is_refused(slurm: Cluster) -> None:
    with pytest.raises(MungeError, match="Invalid credential"):
        munge_of(slurm).open(b"MUNGE:nonsense:")


def test_a_daemon_that_does_not_run_is_said(slurm: Cluster) -> None:
    absent = Munge("munge", "unmunge", f"{slurm.folder}/none.socket")
    with pytest.raises(MungeError, match="munge failed"):
        absent.seal(b"text")
