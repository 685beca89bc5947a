"""Start so many ranks with each library by turns, and collect what they wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.mpi_environment import mpi_environment
from benchmarks.processes import ROOT, RankFailedError, environment
from benchmarks.starting.rank import ALONE, ASYNC, BLOCKING, GLOO, MPI, Facts

LIBRARIES = (ASYNC, BLOCKING, GLOO, MPI, ALONE)

LIMIT = 300.0
"""Seconds for one start."""


@dataclass(frozen=True)
class Start:
    """One start: seconds from the command to the end of the last rank's first all_reduce."""

    seconds: float
    facts: tuple[Facts, ...]


@dataclass(frozen=True)
class StartResult:
    """The starts of one library with so many ranks. Bytes and counts are of the largest rank.

    ``idle``: the share of one core that all ranks together use while they wait for rank 0, of the
    start in which it was least: other work on the machine adds to it, and takes nothing away.
    """

    library: str
    ranks: int
    seconds: tuple[float, ...]
    memory: int
    private: int
    files: int
    sockets: int
    threads: int
    has_torch: bool
    idle: float

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @classmethod
    def of(cls, library: str, ranks: int, starts: Sequence[Start]) -> StartResult:
        """Return the result of ``starts``."""
        facts = [each for start in starts for each in start.facts]
        largest = {
            name: max(getattr(each, name) for each in facts)
            for name in ("memory", "private", "files", "sockets", "threads")
        }
        seconds = tuple(round(start.seconds, 3) for start in starts)
        torch = any(each.has_torch for each in facts)
        idle = min(sum(each.idle for each in start.facts) for start in starts)
        return cls(library, ranks, seconds, has_torch=torch, idle=round(idle, 5), **largest)


@dataclass(frozen=True)
class StartReport:
    """All of a run."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    results: tuple[StartResult, ...]


def run(
    ranks: Sequence[int],
    repeats: int,
    libraries: Sequence[str] = LIBRARIES,
    progress: Callable[[str], None] = lambda line: None,
) -> StartReport:
    """Start each number of ranks with each library, ``repeats`` times by turns. Raises
    RankFailedError.
    """
    before, began = machine.describe(), time.monotonic()
    results = []
    for count in ranks:
        starts: dict[str, list[Start]] = {library: [] for library in libraries}
        for _ in range(repeats):
            for library in libraries:
                starts[library].append(start(library, count))
        results += [StartResult.of(library, count, each) for library, each in starts.items()]
        progress(f"{count} ranks: {time.monotonic() - began:.0f} s so far")
    settings = {"repeats": repeats, "seconds": round(time.monotonic() - began)}
    return StartReport(before, settings, tuple(results))


def start(library: str, ranks: int) -> Start:
    """Start ``ranks`` ranks once. Raises RankFailedError."""
    with tempfile.TemporaryDirectory(prefix="aiodist-bench-") as folder:
        program = ["-m", "benchmarks.starting.rank", library, folder]
        began = time.monotonic_ns()
        if library == ALONE:
            _alone(program, ranks)
        else:
            command, variables = _command(library, program, ranks)
            _call(command, variables, f"{library}, {ranks} ranks")
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    facts = tuple(Facts(**each) for each in found)
    return Start((max(each.end for each in facts) - began) / 1e9, facts)


def _command(library: str, program: list[str], ranks: int) -> tuple[list[str], dict[str, str]]:
    python, scripts = sys.executable, Path(sys.executable).parent
    if library == MPI:
        mpi = mpi_environment(MPI)
        return mpi.command(ranks, program), mpi.variables()
    if library == GLOO:
        torchrun = [str(scripts / "torchrun"), "--standalone", f"--nproc-per-node={ranks}"]
        return [*torchrun, *program], environment()
    return [python, "-m", "aiodist", "run", "-n", str(ranks), *program], environment()


def _alone(program: list[str], ranks: int) -> None:
    variables = [environment() | {"RANK": str(rank)} for rank in range(ranks)]
    processes = [
        subprocess.Popen([sys.executable, *program], cwd=ROOT, env=each) for each in variables
    ]
    try:
        for process in processes:
            if process.wait(LIMIT):
                raise RankFailedError(f"{ALONE}: a process ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _call(command: list[str], variables: dict[str, str], what: str) -> None:
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launcher:
        try:
            said, _ = launcher.communicate(timeout=LIMIT)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RankFailedError(f"{what}: no end after {LIMIT:.0f} s") from error
            raise
    if launcher.returncode:
        raise RankFailedError(f"{what}: the launcher ended with {launcher.returncode}\n{said}")
