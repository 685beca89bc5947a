"""One Slurm cluster for all tests here, and what they read of its jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.limits import timeout_scale
from tests.slurm.cluster import Cluster, cluster, missing

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A running cluster for all tests; they are skipped where none can be made."""
    yield from _running_cluster()


@pytest.fixture
def own_slurm() -> Iterator[Cluster]:
    """A running cluster for a test that loses nodes."""
    yield from _running_cluster()


def _running_cluster() -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    try:
        with cluster(timeout_scale()) as made:
            made.environ["PYTHONPATH"] = str(REPOSITORY)
            made.environ["PYTHONUNBUFFERED"] = "1"
            yield made
    except subprocess.CalledProcessError as error:
        if error.cmd[0] != "ip":
            raise
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")


@pytest.fixture(autouse=True)
def _no_job_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the jobs that a failed test left, so that the next one finds both nodes idle."""
    yield
    if "slurm" in request.fixturenames:
        made: Cluster = request.getfixturevalue("slurm")
        made.run("scancel", "--user=root", "--full", check=False)
        made.wait_until(made.is_idle, "the queue to be empty", 60)


def rank_command(*arguments: str) -> tuple[str, ...]:
    """``tests.slurm.rank`` as a step's command."""
    return (sys.executable, "-m", "tests.slurm.rank", *arguments)


def reports(output: str) -> list[dict[str, Any]]:
    """What the ranks in ``output`` printed of themselves, in the order of their ranks."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda report: (report["step"], report["rank"]))


def batch(folder: Path, *lines: str, options: Mapping[str, str] | None = None) -> str:
    """Write a batch script of ``lines`` into ``folder`` and return its path."""
    head = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in (options or {}).items()),
    ]
    script = folder / "job.sbatch"
    script.write_text("\n".join([*head, *lines, ""]))
    return str(script)
