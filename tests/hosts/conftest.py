"""Hosts that a real ssh reaches, and the launcher of one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.hosts import hosts
from tests.hosts import sshd
from tests.hosts.sshd import SshHosts, processes_with

ROOT = Path(__file__).parents[2]
RANK = str(Path(__file__).parent / "rank.py")
TOKEN = "AIODIST_TEST_HOSTS"
"""A variable that all ranks of a test's job have, with a value of the test's own."""


class Lab:
    """Start jobs from the first host."""

    def __init__(self, reached: SshHosts, limit: float) -> None:
        self.reached = reached
        self.limit = limit
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.secret = os.urandom(16).hex()
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``aiodist run`` with ``words`` over the hosts' ssh."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")
        }
        launcher = subprocess.Popen(
            self.reached.on(
                0, *(sys.executable, "-m", "aiodist", "run", "--ssh", self.reached.ssh, *words)
            ),
            cwd=ROOT,
            env=environment
            | {TOKEN: self.token, "AIODIST_SECRET": self.secret, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(launcher)
        return launcher

    def finish(self, launcher: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of ``launcher``."""
        out, err = launcher.communicate(timeout=self.limit)
        return launcher.returncode, out, err

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a job to its end."""
        return self.finish(self.start(*words))

    def ranks(self) -> list[int]:
        """Return the processes of this test's jobs on all hosts."""
        launchers = {launcher.pid for launcher in self._started}
        found = processes_with(f"{TOKEN}={self.token}", ("environ",))
        return [pid for pid in found if pid not in launchers]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Poll until ``is_so()``; AssertionError at the limit."""
        end = time.monotonic() + self.limit
        while not is_so():
            assert time.monotonic() < end, f"waited too long for {what}"
            time.sleep(0.05)

    def wait_until_none_is_left(self) -> None:
        """Wait until no process of the jobs is left."""
        self.wait_until(lambda: not self.ranks(), "the end of all ranks")

    def clean_up(self) -> None:
        for launcher in self._started:
            launcher.kill()
            launcher.communicate()
        for pid in self.ranks():
            with suppress(ProcessLookupError):  # ranks end by themselves without their launcher
                os.kill(pid, signal.SIGKILL)


def _lab(reached: SshHosts, limit: float) -> Iterator[Lab]:
    made = Lab(reached, limit)
    yield made
    made.clean_up()


@pytest.fixture(scope="module")
def on_loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    yield from _started(SshHosts(tmp_path_factory.mktemp("ssh"), 2))


@pytest.fixture
def lab(on_loopback: SshHosts, scaled: Callable[[float], float]) -> Iterator[Lab]:
    """Two hosts that are this machine, with a server each."""
    yield from _lab(on_loopback, scaled(60))


@pytest.fixture
def four_hosts(tmp_path: Path, scaled: Callable[[float], float]) -> Iterator[Lab]:
    """Four network namespaces with a server each."""
    with hosts(4) as network:
        for reached in _started(SshHosts(tmp_path, 4, network)):
            yield from _lab(reached, scaled(60))


def _started(reached: SshHosts) -> Iterator[SshHosts]:
    if (lacking := sshd.missing()) is not None:
        pytest.skip(lacking)
    try:
        reached.start()
        yield reached
    finally:
        reached.stop()
