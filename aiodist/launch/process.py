"""One rank's process, its group, and the watchdog over all groups."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiodist.errors import DistError
from aiodist.launch.failure import Tail, describe_status
from aiodist.procfs import host_name, stat_fields

_HERE = Path(__file__).parent

UNKNOWN = 255
"""The exit code of a rank whose own one is not known, as asyncio has it."""

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system counts ``ru_maxrss``."""


def helper_command(name: str) -> list[str]:
    """Return the command of a program of this folder. It starts quickly, and ignores PYTHON* variables.

    Raises DistError if this folder is part of an archive.
    """
    path = _HERE / name
    if not path.exists():  # an installation of compiled files alone
        path = path.with_suffix(".pyc")
    if not path.exists():
        raise DistError(
            f"ranks cannot be started by an aiodist inside of an archive, {_HERE}: it needs its own "
            "files; install aiodist, or unpack the archive"
        )
    return [sys.executable, "-I", "-S", str(path)]


class Watchdog:
    """A small process that kills the announced groups if this one dies. A context manager."""

    def __enter__(self) -> Watchdog:
        self._process = subprocess.Popen(
            helper_command("watchdog.py"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # a fork of this program holds the pipe open
            self._process.kill()
            self._process.wait()

    def announce(self, group: int) -> None:
        self._write(f"+{group}\n")

    def take_back(self, group: int) -> None:
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # the watchdog was killed; the parent-death signal is still there


class LaunchedRank:
    """What the launcher's loop knows of a rank, on this host or on another one."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank, self.local_rank = rank, local_rank
        self.pid = 0
        self.status: int | None = None
        """How it has ended, as subprocess's returncode; None until its end is reaped."""
        self.peak_memory = 0
        """The most resident bytes that it had; 0 as long as it is not known."""
        self.lost = ""
        """Why its host counts as lost; empty where it does not."""
        self.tail = Tail()
        """Of its stderr, for the summary; empty where its output is passed through."""
        self.group_gone = False

    @property
    def running(self) -> bool:
        return self.status is None

    def describe_end(self) -> str:
        """Return how it has ended."""
        return self.lost or describe_status(self.status or 0)


class RankProcess(LaunchedRank):
    """A started rank, leader of a session and process group of its own.

    The group makes it possible to stop what the rank started as well. A session of its own, and not
    just a group, lets rank 0 read the terminal, which stops background groups of its session.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        rank: int,
        local_rank: int,
        stdin: int | None,
        stdout: int | None,
        stderr: int | None,
        replacement: bool = False,
    ) -> None:
        """Start the process. Descriptors are as in subprocess.Popen. Raises OSError."""
        super().__init__(rank, local_rank)
        self.host = host_name()
        self.replacement = replacement
        """Whether it was started alone, in place of a process that failed."""
        self.popen = subprocess.Popen(
            [*helper_command("child.py"), str(os.getpid()), *command],
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self.popen.pid
        self.is_announced = True
        """Whether the watchdog has its group, which it is to kill if the launcher dies."""
        self.replaced = False
        """Whether another process has taken its place, so that its end is no failure of the job."""
        self.pidfd = _pidfd(self.pid)

    @property
    def needs_polling(self) -> bool:
        """Return whether the system cannot announce its end."""
        return self.running and self.pidfd is None

    def reap(self) -> bool:
        """Return whether it has ended just now; ``status`` then says how."""
        if self.status is not None:
            return False
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            # Another part of the program has waited for it, or it ignores SIGCHLD.
            self.status = self.popen.returncode = UNKNOWN
        else:
            if pid == 0:
                return False
            self.status = self.popen.returncode = os.waitstatus_to_exitcode(status)
            self.peak_memory = usage.ru_maxrss * RSS_UNIT
        self.close_pidfd()
        return True

    def close_pidfd(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close(self) -> None:
        """Wait for its end, and free its descriptors."""
        self.popen.wait()
        self.close_pidfd()
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()

    def send(self, number: int) -> None:
        """Signal the rank, but not what it started.

        A data loader's worker that ends first makes its trainer fail while that tries to save its
        work. Ctrl-C goes to all, as in a shell.
        """
        if self.running:
            if number == signal.SIGINT:
                self.send_group(number)
            else:
                # In a signal handler `reap` may have waited for it, and not have noted that. A program
                # such as sudo belongs to another user.
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, number)

    def send_group(self, number: int) -> None:
        """Signal everything in the rank's group."""
        if not self.group_gone:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                self.group_gone = not self.running
            except PermissionError:
                pass  # macOS says so of groups that hold only zombies

    def group_alive(self) -> bool:
        """Return whether a process of the rank's group exists.

        An empty group is never signalled again: its number may then belong to another group.
        """
        self.send_group(0)
        return not self.group_gone

    def group_running(self) -> bool:
        """Return `group_alive` without zombies, which stay in containers whose init reaps none.

        Looks at every process of the host, so it is for the end of the job only.
        """
        return self.group_alive() and not _only_zombies(self.pid)


def _only_zombies(group: int) -> bool:
    """Return whether every process of ``group`` has ended; False if the system does not tell."""
    pids = glob.glob("[0-9]*", root_dir="/proc")
    for pid in pids:
        try:
            state, _, its_group = stat_fields(pid)[:3]
        except OSError:
            continue  # it is gone already
        if int(its_group) == group and state not in "ZX":
            return False
    return bool(pids)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the child ends; None if the system has none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None
