"""The agent of a host: ``python -P -m aiodist.launch.remote.host_agent``, started over ssh.

It starts ranks as the launcher tells, passes on their output, and says how they end. Nothing it
has started outlives it: when its stdin closes or falls silent, or the agent dies, all is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from aiodist.launch.output_streams import CHUNK, DRAIN_LIMIT
from aiodist.launch.ports import PortReservation, reserve_port
from aiodist.launch.process import RankProcess, Watchdog
from aiodist.launch.remote.agent_frames import GREETING, Frame, FrameKind, FrameReader, encode

SILENCE = 30.0
"""Seconds without a frame after which the launcher counts as lost. A launcher that is stopped by
Ctrl-Z sends none, and a connection may be cut without a word."""

TICK = 0.25
"""Seconds between looks at the groups of ranks that have ended."""

BACKLOG = 1 << 20
"""Bytes of output that wait for the launcher; with more, ranks wait at their pipes."""


class HostAgent:
    """Serve one launcher until it is gone."""

    def __init__(self, commands: int, answers: int) -> None:
        """``commands``, ``answers``: the descriptors to read frames from and to write them to."""
        self._commands, self._answers = commands, answers
        self._reader = FrameReader()
        self._outgoing = bytearray(GREETING)
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, RankProcess] = {}
        self._ended: list[RankProcess] = []
        """Ranks that have ended, while something of their groups is left."""
        self._pipes: dict[int, tuple[RankProcess, FrameKind]] = {}
        self._environment: dict[str, str] = {}
        self._port: PortReservation | None = None
        self._heard_at = time.monotonic()
        self._over = False

    def serve(self) -> None:
        """Do what the launcher says until it closes the stream or falls silent; then kill all."""
        os.set_blocking(self._commands, False)
        os.set_blocking(self._answers, False)
        self._selector.register(self._commands, selectors.EVENT_READ, self._read)
        with Watchdog() as self._watchdog, contextlib.closing(self._selector):
            try:
                while not self._over or self._outgoing:
                    self._turn()
                    silent = time.monotonic() - self._heard_at > SILENCE
                    if silent or (self._over and self._commands < 0):
                        return
            finally:
                self._kill_all()

    # the loop

    def _turn(self) -> None:
        self._watch_answers()
        quiet = not self._ended and all(rank.pidfd is not None for rank in self._running())
        for key, _ in self._selector.select(SILENCE / 10 if quiet else TICK):
            act: Callable[[], None] = key.data
            act()
        self._reap()

    def _watch_answers(self) -> None:
        """Write what waits; ranks wait at their pipes as long as too much does."""
        watched = self._answers in self._selector.get_map()
        if self._outgoing and not watched:
            self._selector.register(self._answers, selectors.EVENT_WRITE, self._write)
        elif watched and not self._outgoing:
            self._selector.unregister(self._answers)
        full = len(self._outgoing) > BACKLOG
        for pipe in self._pipes:
            if full == (pipe in self._selector.get_map()):
                if full:
                    self._selector.unregister(pipe)
                else:
                    self._selector.register(
                        pipe, selectors.EVENT_READ, lambda fd=pipe: self._forward(fd)
                    )

    def _write(self) -> None:
        try:
            del self._outgoing[: os.write(self._answers, self._outgoing[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:  # the launcher is gone
            self._outgoing.clear()
            self._end()

    def _read(self) -> None:
        if self._commands < 0:
            return  # the stream of answers has told first
        try:
            data = os.read(self._commands, CHUNK)
        except ConnectionResetError:  # of a socket whose other end had not read all answers
            data = b""
        if not data:
            self._end()
            return
        self._heard_at = time.monotonic()
        for frame in self._reader.feed(data):
            self._handle(frame)

    def _end(self) -> None:
        """Note that the launcher is gone, which both streams may tell at once. Idempotent."""
        if self._commands >= 0:
            self._selector.unregister(self._commands)
            self._commands = -1
        self._over = True

    # what the launcher says

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.PING:
            self._outgoing += encode(FrameKind.PONG)
        elif frame.kind is FrameKind.PREPARE:
            self._prepare(**frame.facts)
        elif frame.kind is FrameKind.START:
            self._start(frame.rank, **frame.facts)
        elif frame.kind is FrameKind.SIGNAL:
            rank = self._ranks.get(frame.rank)
            if rank is not None:
                (rank.send_group if frame.facts["group"] else rank.send)(frame.facts["number"])

    def _prepare(self, *, folder: str, environment: dict[str, str], port: int | None) -> None:
        """``port``: the port to reserve for rank 0, 0 for a free one; None on the other hosts."""
        try:
            os.chdir(folder)
            if port is not None:
                self._port = reserve_port(port)
        except (OSError, ValueError, RuntimeError) as error:
            self._outgoing += encode(FrameKind.REFUSED, why=str(error))
            self._over = True
            return
        self._environment = dict(os.environ) | environment
        peer, _, own, _ = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
        self._outgoing += encode(
            FrameKind.READY,
            host=socket.gethostname(),
            address=own,
            launcher=peer,
            port=self._port.port if self._port else None,
        )

    def _start(
        self, number: int, *, command: list[str], variables: dict[str, str], local_rank: int
    ) -> None:
        try:
            rank = RankProcess(
                command,
                self._environment | variables,
                rank=number,
                local_rank=local_rank,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            text = f"aiodist: the system refuses to start the rank: {error}\n"
            self._outgoing += encode(FrameKind.STDERR, number, text.encode())
            self._outgoing += encode(FrameKind.EXITED, number, status=126, peak_memory=0)
            self._outgoing += encode(FrameKind.GROUP_GONE, number)
            return
        self._ranks[number] = rank
        self._watchdog.announce(rank.pid)
        if rank.pidfd is not None:
            self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: None)
        for pipe, kind in (
            (rank.popen.stdout, FrameKind.STDOUT),
            (rank.popen.stderr, FrameKind.STDERR),
        ):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = rank, kind
        self._outgoing += encode(FrameKind.STARTED, number, pid=rank.pid)

    # ranks

    def _running(self) -> list[RankProcess]:
        return [rank for rank in self._ranks.values() if rank.running]

    def _forward(self, pipe: int) -> bool:
        """Pass on one chunk of a rank's output. Returns whether there was any."""
        rank, kind = self._pipes[pipe]
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._pipes.pop(pipe)
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
            return False
        self._outgoing += encode(kind, rank.rank, data)
        return True

    def _reap(self) -> None:
        for rank in self._running():
            pidfd = rank.pidfd
            if rank.reap():
                if pidfd is not None:
                    self._selector.unregister(pidfd)
                for pipe in [pipe for pipe, (owner, _) in self._pipes.items() if owner is rank]:
                    for _ in range(DRAIN_LIMIT):
                        if not self._forward(pipe):
                            break
                self._outgoing += encode(
                    FrameKind.EXITED, rank.rank, status=rank.status, peak_memory=rank.peak_memory
                )
                self._ended.append(rank)
        for rank in [rank for rank in self._ended if not rank.group_running()]:
            self._ended.remove(rank)
            self._watchdog.take_back(rank.pid)
            for pipe in [pipe for pipe, (owner, _) in self._pipes.items() if owner is rank]:
                self._forward(pipe)
            self._outgoing += encode(FrameKind.GROUP_GONE, rank.rank)
        for rank in self._ranks.values():
            if not rank.running:
                rank.group_alive()  # zombies may be left: once it is empty, it is not killed at the end

    def _kill_all(self) -> None:
        for rank in self._ranks.values():
            if rank.running or not rank.group_gone:
                rank.send_group(signal.SIGKILL)
            rank.close()
            self._watchdog.take_back(rank.pid)  # another group may soon have its number
        if self._port is not None:
            self._port.close()


def main() -> int:
    """Serve the launcher at stdin and stdout."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher says what ranks are to get
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the system tells no exit code of a rank
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not come between the frames
    HostAgent(0, answers).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
