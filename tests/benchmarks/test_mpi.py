"""MPI jobs, with an mpiexec that only pretends."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, Samples, encode
from benchmarks.mpi import MpiJobs
from benchmarks.mpi_environment import (
    MpiEnvironment,
    NoEnvironmentError,
    mpi_environment,
)
from benchmarks.processes import RankFailedError

CASES = [Case("all_reduce", 2, 4), Case("all_reduce", 2, 64)]
EFFORT = Repetitions(0.5, 3, 9)


def pretend(folder: Path, script: str, name: str = "mpich") -> MpiJobs:
    """An environment whose mpiexec is a shell script; its arguments go to a file."""
    program = folder / "bin" / "mpiexec"
    program.parent.mkdir()
    keep = f'printf "%s " "$@" > {folder}/arguments'
    program.write_text("\n".join(["#!/bin/sh", keep, script, ""]))
    program.chmod(0o755)
    return MpiJobs(MpiEnvironment(name, "1.0", folder))


def test_a_job_gets_its_cases_and_returns_the_samples_of_its_ranks(tmp_path: Path) -> None:
    ranks = [Samples({"mpich": [(0, 5)]}), Samples({"mpich": [(1, 7)]}, {"x": "not here"})]
    texts = [encode(samples) for samples in ranks]
    (tmp_path / "samples").write_text(json.dumps([texts, texts]))
    script = f'for last; do :; done; cp {tmp_path}/samples "$last"'
    jobs = pretend(tmp_path, script)

    assert jobs.measure(2, CASES, EFFORT, False) == [ranks, ranks]
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:2] == ["-n", "2"]
    assert arguments[3:6] == ["-m", "benchmarks.mpi_rank", "mpich"]


def test_open_mpi_may_run_anywhere_with_any_number_of_ranks(tmp_path: Path) -> None:
    jobs = pretend(tmp_path, "exit 1", "openmpi")

    with pytest.raises(RankFailedError):
        jobs.measure(8, CASES, EFFORT, False)
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("--allow-run-as-root --oversubscribe --bind-to none -n 8 ")


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    jobs = pretend(tmp_path, "echo out of luck >&2; exit 3")

    with pytest.raises(RankFailedError, match="mpich, 2 ranks, all_reduce: out of luck"):
        jobs.measure(2, CASES, EFFORT, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mpich", pytest.param("openmpi", marks=pytest.mark.benchmarks)])
def test_direct_calls_and_aiodist_take_turns_in_one_job(name: str) -> None:
    try:
        jobs = MpiJobs(mpi_environment(name))
    except NoEnvironmentError as error:
        pytest.skip(f"{name} and mpi4py cannot be installed here: {error}")
    cases = [Case("all_reduce", 2, 64), Case("send_recv", 2, 64)]
    effort = dataclasses.replace(EFFORT, budget=0.01, most=3)

    by_case = jobs.measure(2, cases, effort, False)

    assert jobs.peers == (name, f"{name}-aiodist")
    assert len(by_case) == len(cases)
    for ranks in by_case:
        for samples in ranks:  # a wrong result would have left no samples
            assert set(samples.intervals) == set(jobs.peers)
            assert all(len(intervals) >= 3 for intervals in samples.intervals.values())
            assert not samples.unsupported
