"""Unmodified programs of packages over aiodist, with Gloo as control; ``make test-ecosystem`` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import scaled

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
PROGRAMS = "tests.ecosystem.programs"


def run(folder: Path, *module: str, **environment: str) -> str:
    """Run ``python -m`` with ``module``, which has to succeed; what it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "ACCELERATE_USE_CPU": "true",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=scaled(120))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    return said


def result(said: str) -> list[str]:
    """The backend and the figures of the line "result ..."."""
    (line,) = [line for line in said.splitlines() if line.startswith("result ")]
    return line.split()[1:]


@pytest.mark.parametrize(
    "program",
    [
        ("lightning_ddp", "popen"),
        ("lightning_ddp", "spawn"),
        ("dask_workers",),
        ("ray_train",),
    ],
    ids=" ".join,
)
def test_a_program_that_names_the_backend_learns_what_gloo_learns(
    program: tuple[str, ...], tmp_path: Path
) -> None:
    name, *more = program
    ours, gloo = (
        result(run(tmp_path, f"{PROGRAMS}.{name}", backend, *more))
        for backend in ("aiodist", "gloo")
    )
    assert (ours[0], gloo[0]) == ("aiodist", "gloo")
    assert ours[1:] == gloo[1:]


def test_metrics_of_torchmetrics_are_those_over_gloo(tmp_path: Path) -> None:
    ours, gloo = (
        result(run(tmp_path, *TORCHRUN, f"{PROGRAMS}.torchmetrics_sync", backend))
        for backend in ("aiodist", "gloo")
    )
    assert (ours[0], gloo[0]) == ("aiodist", "gloo")
    assert ours[1:] == gloo[1:]


@pytest.mark.parametrize("program", ["transformers_trainer", "ignite_training"])
def test_a_program_that_asks_for_gloo_learns_the_same_over_aiodist(
    program: str, tmp_path: Path
) -> None:
    ours, gloo = (
        result(run(tmp_path, *TORCHRUN, f"{PROGRAMS}.{program}", AIODIST_INSTEAD_OF=name))
        for name in ("gloo", "")
    )
    assert (ours[0], gloo[0]) == ("aiodist", "gloo")
    assert ours[1:] == gloo[1:]


@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own_script(script: str, tmp_path: Path) -> None:
    """Its `test_ops` fails over Gloo at times, as one rank ends early: there is no control."""
    run(tmp_path, *TORCHRUN, f"accelerate.test_utils.scripts.{script}", AIODIST_INSTEAD_OF="gloo")


def test_torchfts_own_tests_of_its_groups(tmp_path: Path) -> None:
    run(tmp_path, f"{PROGRAMS}.torchft_groups")
