"""Whole scripts: the blocking API under mpiexec, and processes without mpiexec."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mpi_environment import MpiEnvironment
from benchmarks.mpi_leftovers import swept
from benchmarks.processes import ROOT
from tests.backends.mpi.conftest import Job

BLOCKING = """
import numpy as np

import aiodist.sync as dist

assert dist.is_mpi_available()
dist.init_process_group("mpi", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
assert (size, dist.get_backend()) == (2, "mpi")
for count in (1, 100_000):
    tensor = np.full(count, rank + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == 3).all()
work = dist.all_reduce(tensor, async_op=True)
assert work.wait() and (tensor == 6).all()
if rank == 0:
    dist.send(np.arange(3.0), 1)
else:
    assert dist.recv(tensor[:3]) == 0
objects = [None, None]
dist.all_gather_object(objects, rank)
assert objects == [0, 1]
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} is done\\n", end="", flush=True)
"""

ALONE = """
import asyncio
import os
import sys

import aiodist as dist

assert dist.is_mpi_available()
assert "mpi4py.MPI" not in sys.modules  # which would have initialised MPI


async def main():
    for numbers in ({"rank": 3, "world_size": 4}, {"world_size": 2}):
        try:
            await dist.init_process_group("mpi", **numbers)
        except dist.InvalidUsageError as error:
            assert "MPI says" in str(error), error
        else:
            raise AssertionError("taken")
    await dist.init_process_group("mpi", rank=0)
    assert dist.get_world_size() == 1
    objects = [None]
    await dist.all_gather_object(objects, "x")
    await dist.barrier()
    await dist.destroy_process_group()
    os.environ["AIODIST_MPI_CHECK"] = "maybe"
    try:
        await dist.init_process_group("mpi")
    except dist.InvalidUsageError:
        print("done")


asyncio.run(main())
"""

WORLD_SIZE = """
import aiodist.sync as dist

dist.init_process_group("mpi", world_size=GIVEN)
print("size", dist.get_world_size())
dist.destroy_process_group()
"""

ONE_THREAD = """
import asyncio

import mpi4py

mpi4py.rc.thread_level = "single"

import aiodist as dist

try:
    asyncio.run(dist.init_process_group("mpi"))
except dist.DistBackendError as error:
    print(error)
"""

FINALIZED = """
from mpi4py import MPI

import aiodist.sync as dist

dist.init_process_group("mpi")
dist.barrier()
MPI.Finalize()
dist.destroy_process_group()
print("done")
"""

UNAVAILABLE = """
import asyncio

import aiodist as dist

assert not dist.is_mpi_available()
try:
    asyncio.run(dist.init_process_group("mpi"))
except dist.InvalidUsageError as error:
    print(error)
"""


def python(mpi: MpiEnvironment, source: str, **variables: str) -> str:
    """What a process without mpiexec prints."""
    command = [str(mpi.folder / "bin" / "python"), "-W", "error", "-c", source]
    with swept():
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**mpi.variables(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_blocking_api(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BLOCKING)
    output = job(2, "-W", "error", script)
    assert {"rank 0 is done", "rank 1 is done"} <= set(output.splitlines())


@pytest.mark.slow
def test_without_mpiexec_a_process_is_one_rank_of_one(mpi: MpiEnvironment) -> None:
    assert python(mpi, ALONE).strip().endswith("done")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "given", "warnings"), [("3", "-1", 1), ("1", "-1", 0), ("3", "1", 0)]
)
def test_a_world_size_of_another_launcher_is_warned_of(
    mpi: MpiEnvironment, world_size: str, given: str, warnings: int
) -> None:
    """A program that passes ``world_size=1`` means it."""
    script = WORLD_SIZE.replace("GIVEN", given)
    output = python(mpi, script, RANK="0", WORLD_SIZE=world_size)
    assert output.count(f"although WORLD_SIZE is {world_size}: with backend 'mpi'") == warnings
    assert output.strip().endswith("size 1")


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "warnings"), [("3", 1), ("1", 0)])
def test_tasks_of_srun_without_mpi_are_warned_of(
    mpi: MpiEnvironment, tasks: str, warnings: int
) -> None:
    script = WORLD_SIZE.replace("GIVEN", "-1")
    output = python(mpi, script, SLURM_PROCID="0", SLURM_NTASKS="3", SLURM_STEP_NUM_TASKS=tasks)
    assert output.count("although SLURM_STEP_NUM_TASKS is 3: with backend 'mpi'") == warnings
    assert output.count("Start the ranks by srun --mpi=pmix") == warnings
    assert output.strip().endswith("size 1")


@pytest.mark.slow
def test_a_group_closes_after_the_program_has_finalised_mpi(mpi: MpiEnvironment) -> None:
    assert python(mpi, FINALIZED).strip().endswith("done")


@pytest.mark.slow
def test_the_thread_level_is_checked(mpi: MpiEnvironment) -> None:
    assert "lets only the thread that did so call it" in python(mpi, ONE_THREAD)


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_a_library_that_does_not_load_is_said(mpi: MpiEnvironment) -> None:
    output = python(mpi, UNAVAILABLE, MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert "backend 'mpi' is not available here: mpi4py finds no MPI library" in output


def test_without_mpi4py_the_reason_names_the_extra() -> None:
    source = "import sys\nsys.modules['mpi4py'] = None\n" + UNAVAILABLE
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip install 'aiodist[mpi]'" in done.stdout
