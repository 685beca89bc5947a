"""MPI jobs: an environment for each library, and a job for each block of cases."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.measure import Effort, Samples, decode
from benchmarks.processes import ROOT, RankFailedError, environment

CACHE = ROOT / "build" / "mpi"
"""Where the environments are kept between runs; ``make clean`` removes them."""
LIMIT = 600.0
"""Seconds for a block."""

OPTIONS = {
    # Ranks may outnumber cores, and are bound to cores only where the other peers are.
    "openmpi": ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
    "mpich": (),
}


@dataclass(frozen=True)
class MpiJobs:
    """One MPI library in its environment; see `benchmarks.run.Blocks`."""

    name: str
    version: str
    folder: Path

    def measure(
        self, ranks: int, cases: Sequence[Case], effort: Effort, pinned: bool
    ) -> list[list[Samples]]:
        """Start a job that measures ``cases``. Raises RankFailedError."""
        order = {
            "cases": [dataclasses.asdict(case) for case in cases],
            "effort": dataclasses.asdict(effort),
            "pinned": pinned,
        }
        bin = self.folder / "bin"
        with tempfile.TemporaryDirectory() as folder:
            orders, samples = Path(folder, "orders.json"), Path(folder, "samples.json")
            orders.write_text(json.dumps(order))
            command = [bin / "mpiexec", *OPTIONS[self.name], "-n", ranks, bin / "python"]
            command += ["-m", "benchmarks.mpi_rank", self.name, orders, samples]
            environ = environment()
            environ["PATH"] = os.pathsep.join([str(bin), environ.get("PATH", "")])
            what = f"{self.name}, {ranks} ranks, {cases[0].operation}"
            try:
                subprocess.run(
                    list(map(str, command)),
                    cwd=ROOT,
                    env=environ,
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT,
                )
            except subprocess.CalledProcessError as error:
                raise RankFailedError(f"{what}: {error.stderr or error.stdout}") from error
            except subprocess.TimeoutExpired as error:
                raise RankFailedError(f"{what}: no answer after {LIMIT:.0f} s") from error
            return [[decode(rank) for rank in case] for case in json.loads(samples.read_text())]


def mpi_peers(say: Callable[[str], None]) -> list[MpiJobs]:
    """Open MPI and MPICH, installed from their wheels where they are not yet."""
    return [_installed(name, say) for name in OPTIONS]


def _installed(name: str, say: Callable[[str], None]) -> MpiJobs:
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mpiexec").exists():
        say(f"== installing {name} and mpi4py")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "numpy", "mpi4py", name], check=True)
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    return MpiJobs(name, done.stdout.strip(), folder)
