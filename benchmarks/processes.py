"""Start the ranks of a run, give them cases, collect what they saw."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, Samples, decode
from benchmarks.arrival.cases import PatternCase
from benchmarks.hosts import INTERFACE, inside
from benchmarks.steps.cases import StepCase

ROOT = Path(__file__).parents[1]
_KINDS = MappingProxyType({Case: "case", StepCase: "step", PatternCase: "pattern"})
"""How an order to the ranks names what is to be measured."""

PYTHON = (sys.executable,)
"""The command that runs Python in a rank."""

LOOK_SECONDS = 0.1
"""How often to look for answers; seldom, since the cores are being measured."""


class RankFailedError(RuntimeError):
    """A rank ended, or did not answer in time. What it said is in the message."""


class Ranks:
    """Processes that hold the given peers and measure a case when told to. A context manager."""

    def __init__(
        self,
        ranks: int,
        peers: Sequence[str],
        *,
        pinned: bool = False,
        hosts: Sequence[str] = (),
        limit: float = 300.0,
    ) -> None:
        """``hosts``: the namespace of each rank; none: all on loopback."""
        from torch import distributed

        self.ranks = ranks
        self.peers = tuple(peers)
        self._pinned = pinned
        self._hosts = hosts
        self._limit = limit
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(prefix="aiodist-bench-")
        self._store: Any
        if hosts:  # which share files, and no network with this process
            self._meeting = f"{self._folder.name}/store"
            self._store = distributed.FileStore(self._meeting, -1)
        else:
            self._store = distributed.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
            self._meeting = str(self._store.port)
        # Files, since the parent does not read while the time runs, and a full pipe would stop a rank.
        self._said = [
            tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed by _kill
            for _ in range(ranks)
        ]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Ranks:
        try:
            for rank in range(self.ranks):  # one by one: an error or a signal ends those there are
                self._processes.append(self._start(rank))
            self._wait([f"ready/{rank}" for rank in range(self.ranks)], "start")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._store.set(f"order/{self._number}", "null")
                for process in self._processes:
                    process.wait(30)
        finally:
            self._kill()

    def measure(self, case: Case | StepCase | PatternCase, effort: Repetitions) -> list[Samples]:
        """What each rank saw of ``case``. Raises RankFailedError."""
        number = self._number
        self._number += 1
        order = {_KINDS[type(case)]: dataclasses.asdict(case), "effort": dataclasses.asdict(effort)}
        self._store.set(f"order/{number}", json.dumps(order))
        keys = [f"samples/{number}/{rank}" for rank in range(self.ranks)]
        self._wait(keys, str(case))
        return [decode(self._store.get(key)) for key in keys]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        program = [*PYTHON, "-m", "benchmarks", "rank", str(rank), str(self.ranks)]
        program += [self._meeting, ",".join(self.peers)]
        program += ["--pin"] if self._pinned else []
        if self._hosts:
            program = inside(self._hosts[rank], program)
        environ = environment(INTERFACE if self._hosts else "lo")
        if self._hosts:  # of one kernel: their ranks share no memory, as if each had its own
            environ["AIODIST_HOST_ID"] = self._hosts[rank]
        said = self._said[rank]
        return subprocess.Popen(program, cwd=ROOT, env=environ, stderr=said, text=True)

    def _wait(self, keys: list[str], what: str) -> None:
        end = time.monotonic() + self._limit
        # Asking is cheap; waiting in the store would print a warning at each look.
        while not self._store.check(keys):
            if any(process.poll() is not None for process in self._processes):
                time.sleep(LOOK_SECONDS)  # others may fail of it, or have failed first
                raise RankFailedError("\n".join([f"{what}: the run failed", *self._ended()]))
            if time.monotonic() > end:
                missing = [key for key in keys if not self._store.check([key])]
                raise RankFailedError(
                    f"{what}: no answer after {self._limit:.0f} s, still missing {missing}"
                )
            time.sleep(LOOK_SECONDS)

    def _ended(self) -> Iterator[str]:
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                self._said[rank].seek(0)
                said = self._said[rank].read().strip()
                yield f"rank {rank} of {self.ranks} ended with {process.returncode}\n{said}"

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for said in self._said:
            said.close()
        self._store = None
        self._folder.cleanup()


def environment(interface: str = "lo") -> dict[str, str]:
    """What ranks find: one thread each, an interface, and this source tree before all others."""
    environ = dict(os.environ)
    environ.pop("AIODIST_INSTEAD_OF", None)  # by which what is called Gloo would be aiodist
    environ.update(
        OMP_NUM_THREADS="1",
        # Where the machine is busy a rank may be kept waiting for long, and `limit` bounds that.
        AIODIST_LIVENESS_TIMEOUT="120",
        AIODIST_SOCKET_IFNAME=interface,
        GLOO_SOCKET_IFNAME=interface,
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")])),
    )
    return environ


def exit_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit in the main thread, so that leaving the blocks ends the ranks.

    The exit code is 143. Further ones are ignored: they would interrupt what ends the ranks.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
