"""Tiny scripts under the real launcher, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

RUN = (sys.executable, "-m", "aiodist", "run")
LAUNCH = (sys.executable, "-m", "aiodist.launch")
REPOSITORY = Path(__file__).parents[2]


class Sandbox:
    """A folder for scripts, and a launcher that runs them there."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self._started: list[subprocess.Popen[bytes]] = []

    def script(self, text: str, name: str = "script.py") -> str:
        """Write a script; returns its path."""
        path = self.folder / name
        path.write_text("import os, signal, sys, time\nRANK = os.environ['RANK']\n" + text)
        return str(path)

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, **popen: object
    ) -> subprocess.Popen[bytes]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT")
            and not name.startswith(("AIODIST_", "TORCHELASTIC_"))
        }
        kept["PYTHONPATH"] = str(REPOSITORY)
        streams: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            cwd=self.folder,
            env=kept | dict(env or {}),
            **(streams | popen),  # type: ignore[call-overload]
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
        """Exit code, stdout, stderr of a started launcher."""
        out, err = process.communicate(timeout=self.limit)
        return process.returncode, out.decode(), err.decode()

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        return self.finish(self.start(*command, env=env))

    def wait_for(self, *names: str) -> list[str]:
        """Contents of files in the folder, once all are there and not empty."""
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            texts = [p.read_text() if (p := self.folder / n).exists() else "" for n in names]
            if all(texts):
                return texts
            time.sleep(0.01)
        raise AssertionError(f"not all of {names} appeared")

    def wait_dead(self, *pids: int) -> None:
        """Wait until no such process runs (a zombie that its parent does not collect counts as dead)."""
        end = time.monotonic() + self.limit
        while any(map(_runs, pids)):
            assert time.monotonic() < end, f"still running: {[p for p in pids if _runs(p)]}"
            time.sleep(0.01)

    def clean_up(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def sandbox(tmp_path: Path, scaled: Callable[[float], float]) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path, scaled(20))
    yield made
    made.clean_up()


@pytest.fixture
def run_command() -> tuple[str, ...]:
    return RUN


@pytest.fixture
def launch_command() -> tuple[str, ...]:
    return LAUNCH
