"""A process with one thread and everything imported, which forks the ranks of each cell.

Reads cells as lines of JSON and answers each with a line; several are under way at once. When
its input ends it kills what still runs.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np  # noqa: F401  # once, before the forks
import uvloop  # noqa: F401  # once, before the forks

import aiodist.public  # noqa: F401  # once, before the forks
from tests.faults.cells import AT_A_FLAG, LARGE, MEETING, Cell
from tests.faults.lateness import Turns, turns_of
from tests.faults.rank import Control, become_rank

AT_ONCE = 3
"""Cells under way, unless the first argument says another number."""

HANG_SECONDS = 90.0
"""A cell that has not ended by then is given up: its ranks are killed, and it has failed."""

TURN_SECONDS = 0.5
SLOWDOWN = 100
SLOWDOWN_OF_LARGE = 20
"""A slow rank runs for such a part of each turn, and is stopped for the rest of it. With 64 MiB, and TLS,
which has to encrypt them, a hundredth would take minutes."""

ENTERED_FIRST = ("in send", "in all_reduce of 4 B", "in barrier", "in new_group")
"""Phases in which the others are inside the operation when the fault strikes."""


@dataclass
class _Child:
    rank: int
    pid: int
    go: int  # descriptor of the pipe to it
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: float | None = None  # when its pipe ended, so it
    partial: bytes = b""


class _Run:
    """A cell under way."""

    def __init__(self, number: int, cell: Cell, selector: selectors.BaseSelector) -> None:
        self.number = number
        self.cell = cell
        self.ended = False
        self._selector = selector
        # Removed by hand: a child that ends must not remove it.
        self._folder = Path(tempfile.mkdtemp(prefix="aiodist-matrix-"))
        self._told: set[str] = set()
        self._begin = time.monotonic()
        self._children: list[_Child] = []
        self._port: socket.socket | None = None
        self._place = f"file://{self._folder}/store"
        if cell.phase == MEETING and cell.transport in ("tcp", "tls"):
            self._port = socket.socket()
            self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._port.bind(("127.0.0.1", 0))  # and does not listen: it is kept for rank 0
            self._place = f"tcp://127.0.0.1:{self._port.getsockname()[1]}"
        self._turns: dict[int, Turns] = {}  # of each rank when the fault had struck
        self._heard = 0.0  # when that was
        self._brake = 0  # the process that slows the culprit down
        for rank in range(cell.size):
            self._fork(rank)

    def _fork(self, rank: int) -> None:
        from_child, to_nursery = os.pipe()
        from_nursery, to_child = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(self._words_of(rank), os.O_CREAT | os.O_WRONLY, 0o600), 2)
            keep = {0, 1, 2, to_nursery, from_nursery}
            for name in os.listdir("/proc/self/fd"):
                if int(name) not in keep:
                    _close(int(name))
            become_rank(self.cell, rank, Control(to_nursery, from_nursery), self._place)
        os.close(to_nursery)
        os.close(from_nursery)
        child = _Child(rank, pid, to_child)
        self._children.append(child)
        self._selector.register(from_child, selectors.EVENT_READ, (self, child))

    def heard(self, child: _Child, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            child.gone = time.monotonic()
        *lines, child.partial = (child.partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            child.said[message.pop("say")] = message
            if "struck" in child.said and not self._turns:
                self._turns = {each.rank: turns_of(each.pid) for each in self._children}
                self._heard = time.monotonic()
        self.go_on()

    def go_on(self) -> None:
        """Give each rank its word as soon as it may have it."""
        cell = self.cell
        culprit = self._children[cell.culprit]
        if cell.fault == "slow rank" and "struck" in culprit.said and not self._brake:
            slowdown = SLOWDOWN_OF_LARGE if cell.phase == LARGE else SLOWDOWN
            self._brake = _slow_down(culprit.pid, slowdown)
        others = [child for child in self._children if child is not culprit]
        survivors = [self._children[rank] for rank in cell.survivors]
        if all("ready" in child.said for child in self._children):
            if cell.phase in ENTERED_FIRST:
                self._tell("others", others)
                if all("inside" in child.said for child in others):
                    self._tell("culprit", [culprit])
            elif cell.phase in (LARGE, AT_A_FLAG):
                self._tell("all", self._children)
            else:
                self._tell("culprit", [culprit])
                if self._has_struck(culprit):
                    self._tell("others", others)
        if all("finished" in child.said for child in self._children):
            self._tell("leave", self._children)
        broken = any("broken" in child.said for child in self._children)
        done = all(child.gone is not None or "done" in child.said for child in survivors)
        if done or broken:
            if broken or culprit not in survivors:
                self._kill([culprit] if done else self._children)
            if all(child.gone is not None for child in self._children):
                self._finish()

    def _has_struck(self, culprit: _Child) -> bool:
        if "struck" not in culprit.said:
            return False
        if culprit.rank in self.cell.survivors or culprit.gone is not None:
            return True
        return _is_stopped(culprit.pid)

    def _tell(self, what: str, children: list[_Child]) -> None:
        if what not in self._told:
            self._told.add(what)
            for child in children:
                if child.gone is None:
                    try:
                        os.write(child.go, b"!")
                    except BrokenPipeError:
                        pass

    def look(self) -> None:
        """Between messages: a process that stops says nothing, and one that hangs neither."""
        if time.monotonic() - self._begin > HANG_SECONDS:
            self._kill(self._children)
        else:
            self.go_on()

    def _kill(self, children: list[_Child]) -> None:
        for child in children:
            if child.gone is None:
                os.kill(child.pid, signal.SIGKILL)

    def _finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._release()
        ranks = {}
        for child in self._children:
            _, status = os.waitpid(child.pid, 0)
            os.close(child.go)
            code = os.waitstatus_to_exitcode(status)
            words = self._words_of(child.rank).read_text(errors="replace")
            facts = {"gone": child.gone, "code": code, "stderr": words}
            ranks[child.rank] = {**child.said, **facts}
        self._clean_up()
        facts = {"turns": self._turns, "heard": self._heard, "load": os.getloadavg()[0]}
        print(json.dumps({"number": self.number, "ranks": ranks, **facts}), flush=True)

    def _words_of(self, rank: int) -> Path:
        """Where what the rank says on stderr is kept."""
        return self._folder / f"stderr.{rank}"

    def _release(self) -> None:
        """Before the culprit's number can be another process's."""
        if self._brake > 0:
            os.kill(self._brake, signal.SIGKILL)
            os.waitpid(self._brake, 0)
        self._brake = -1

    def give_up(self) -> None:
        self._release()
        self._kill(self._children)
        for child in self._children:
            os.waitpid(child.pid, 0)
        self._clean_up()

    def _clean_up(self) -> None:
        shutil.rmtree(self._folder)
        if self._port is not None:
            self._port.close()


def _slow_down(pid: int, slowdown: int) -> int:
    """Start a process that lets ``pid`` run for one ``slowdown``-th of the time; its number."""
    awake = TURN_SECONDS / slowdown
    nursery = os.getpid()
    brake = os.fork()
    if brake:
        return brake
    for name in os.listdir("/proc/self/fd"):
        _close(int(name))
    try:
        while os.getppid() == nursery:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(TURN_SECONDS - awake)
            os.kill(pid, signal.SIGCONT)
            time.sleep(awake)
    finally:
        os._exit(0)


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "TtZ"


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # the listing's own


def main() -> NoReturn:
    gc.freeze()  # what is imported stays as it is, in pages that the ranks share
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ, None)
    at_once = int(sys.argv[1]) if len(sys.argv) > 1 else AT_ONCE
    waiting: list[tuple[int, Cell]] = []
    running: list[_Run] = []
    partial = b""
    while True:
        running = [run for run in running if not run.ended]
        while waiting and len(running) < at_once:
            running.append(_Run(*waiting.pop(0), selector))
        for key, _ in selector.select(0.02 if running else None):
            if key.data is not None:
                run, child = key.data
                run.heard(child, key.fd)
                continue
            data = os.read(0, 1 << 16)
            if not data:
                for run in running:
                    run.give_up()
                sys.exit()
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                job = json.loads(line)
                waiting.append((job["number"], Cell(**job["cell"])))
        for run in running:
            run.look()


if __name__ == "__main__":
    main()
