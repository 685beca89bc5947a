"""The launcher's side of one host: the process that reaches its agent, and the ranks there."""

from __future__ import annotations

import math
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from aiodist.errors import DistNetworkError
from aiodist.launch.failure import Tail, describe_status
from aiodist.launch.outlets import Outlet
from aiodist.launch.output_streams import LineStream
from aiodist.launch.process import LaunchedRank
from aiodist.launch.remote.agent_frames import (
    GREETING,
    GREETING_LIMIT,
    Frame,
    FrameKind,
    FrameReader,
    encode,
)
from aiodist.launch.remote.host_list import HostSlots

AGENT = "aiodist.launch.remote.host_agent"

PING_EVERY = 2.0
SILENCE = 10.0
"""Seconds without an answer to a PING after which a host counts as lost, as ranks count each other."""

LOST = 255
"""The exit code of a rank whose host was lost: ssh's own for a lost connection."""

_SSH_OPTIONS = (
    "-T",  # no terminal
    "-x",  # no X11
    "-oBatchMode=yes",  # no prompt: it would wait unseen
    "-oConnectTimeout=20",
    "-oServerAliveInterval=5",
)
_CHUNK = 1 << 16
END_SECONDS = 5.0
"""Seconds for an agent to end by itself once its stdin is closed."""


class RemoteRank(LaunchedRank):
    """A rank on another host, as the launcher treats a `RankProcess`."""

    replacement = False
    replaced = False
    is_announced = False  # its agent has a watchdog of its own
    pidfd: int | None = None
    needs_polling = False

    def __init__(
        self,
        connection: AgentConnection,
        rank: int,
        local_rank: int,
        stdout: Sequence[Outlet],
        stderr: Sequence[Outlet],
    ) -> None:
        """``stdout``, ``stderr``: where its output goes."""
        super().__init__(rank, local_rank)
        self.stdout = LineStream(rank, stdout, None)
        self.stderr = LineStream(rank, stderr, self.tail)
        self.ended_with: int | None = None
        """The status that the agent has told; `reap` makes it known."""
        self._connection = connection

    @property
    def host(self) -> str:
        """The name of its host, as the host itself says."""
        return self._connection.hostname

    def reap(self) -> bool:
        """Return whether it has ended just now; ``status`` then says how."""
        if self.status is not None or self.ended_with is None:
            return False
        self.status = self.ended_with
        return True

    def send(self, number: int) -> None:
        """Signal the rank, as `RankProcess.send` does."""
        if self.running:
            self._connection.send(FrameKind.SIGNAL, self.rank, number=number, group=False)

    def send_group(self, number: int) -> None:
        """Signal everything in the rank's group. Signal 0 asks nothing: the agent says it unasked."""
        if not self.group_gone and number:
            self._connection.send(FrameKind.SIGNAL, self.rank, number=int(number), group=True)

    def group_alive(self) -> bool:
        """Return whether something of its group is left, as far as the agent has told."""
        return not self.group_gone

    group_running = group_alive

    def close(self) -> None:
        """Free nothing: the connection is closed for all ranks of the host at once."""


class AgentConnection:
    """The agent of one host, and the process that leads to it: ssh, or the agent itself here.

    ``hostname``, ``address``, ``launcher`` and ``port`` are what its READY says; see `is_ready`.
    """

    def __init__(
        self, host: HostSlots, ssh: Sequence[str], selector: selectors.BaseSelector
    ) -> None:
        """Start the process. Raises OSError if the system refuses, or has no ssh."""
        self.host = host
        self.hostname = host.name
        self.address = self.launcher = ""
        self.port: int | None = None
        self.is_ready = False
        self.refusal = ""
        """Why the host cannot take part; empty as long as it can."""
        self.errors = Tail()
        """The end of what ssh and the agent have written to stderr."""
        self.on_error_text: Callable[[bytes], None] = self.errors.feed
        self.ranks: dict[int, RemoteRank] = {}
        self._selector = selector
        self._reader = FrameReader()
        self._greeted = False
        self._before = bytearray()
        self._outgoing = bytearray()
        self._is_writing = False
        self.started_at = self._next_ping = time.monotonic()
        self._asked_at: float | None = None
        """When the first PING was sent since the host was last heard; None: not since then."""
        self._process = subprocess.Popen(
            agent_command(host, ssh),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the launcher's to pass on
            bufsize=0,
        )
        self.pid = self._process.pid
        self.is_announced = True
        """Whether the watchdog has its group, as `RankProcess.is_announced` says of a rank's."""
        assert self._process.stdin is not None
        self._commands: IO[bytes] = self._process.stdin
        self._streams: dict[int, IO[bytes]] = {}
        for stream, act in (
            (self._process.stdout, self._read),
            (self._process.stderr, self._read_errors),
        ):
            assert stream is not None
            self._streams[stream.fileno()] = stream
            os.set_blocking(stream.fileno(), False)
            selector.register(stream.fileno(), selectors.EVENT_READ, act)
        os.set_blocking(self._commands.fileno(), False)

    @property
    def is_lost(self) -> bool:
        """Whether the agent is out of reach."""
        return bool(self.refusal)

    def start(self, rank: RemoteRank, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.ranks[rank.rank] = rank
        facts = {"command": list(command), "variables": dict(variables)}
        self.send(FrameKind.START, rank.rank, local_rank=rank.local_rank, **facts)
        if self.is_lost:
            self._end_ranks()

    def send(self, kind: FrameKind, rank: int = -1, **facts: Any) -> None:
        """Send a frame, or keep it until the pipe takes it.

        Does nothing once the host is lost, and after `hang_up`: the handler of a signal may still send.
        """
        if not self.is_lost and not self._commands.closed:
            self._outgoing += encode(kind, rank, **facts)
            self._write()

    def tick(self, looked_at: float) -> None:
        """Send what is due, and give a silent host up.

        ``looked_at``: until when all that has come from the host was read. Invariant: a host counts as
        silent only if it was asked, and if the launcher has looked for the answer since. The launcher
        itself may have been stopped.
        """
        if self._asked_at is not None and looked_at - self._asked_at > SILENCE:
            self._lose(f"it has been silent for {SILENCE:g} s")
        self.ping()

    def ping(self) -> None:
        """Tell a ready host, where that is due, that the launcher lives."""
        now = time.monotonic()
        if self.is_ready and not self.is_lost and now >= self._next_ping:
            self._next_ping = now + PING_EVERY
            if self._asked_at is None:
                self._asked_at = now
            self.send(FrameKind.PING)

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until `tick` has something to do."""
        return math.inf if self.is_lost or not self.is_ready else max(0.0, self._next_ping - now)

    @property
    def group_alive(self) -> bool:
        """Whether the process, or another one of its group, exists. Do not ask again after False:
        the number may then belong to another group.
        """
        if self._process.returncode is None:
            return True
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # macOS says so of groups that hold only zombies
        return True

    def hang_up(self) -> None:
        """Close the agent's stdin, by which it kills all that it has started, and ends."""
        for descriptor in [*self._streams, self._commands.fileno()]:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        self._commands.close()

    def close(self, until: float) -> None:
        """Wait for the end of the agent after `hang_up`; kill what is left at ``until``."""
        try:
            self._process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:  # a connection that is cut
            self._process.kill()
            self._process.wait()
        for stream in self._streams.values():
            stream.close()

    # what comes

    def _read(self) -> None:
        data = self._chunk(self._process.stdout)
        if data is None:
            return
        if not data:
            self._lose(self._how_it_ended())
            return
        self._asked_at = None
        if not self._greeted:
            self._before += data
            noise, greeting, data = bytes(self._before).partition(GREETING)
            if not greeting:
                if len(noise) > GREETING_LIMIT:
                    self._lose("what answers there is no agent of this aiodist")
                return
            self._greeted = True
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except DistNetworkError as error:
            self._lose(f"its agent sent {error}")

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.READY:
            facts = frame.facts
            self.hostname, self.address = facts["host"], facts["address"]
            self.launcher, self.port = facts["launcher"], facts["port"]
            self.is_ready = True
        elif frame.kind is FrameKind.REFUSED:
            self._lose(frame.facts["why"])
        rank = self.ranks.get(frame.rank)
        if rank is None:
            return
        if frame.kind is FrameKind.STDOUT:
            rank.stdout.feed(frame.payload)
        elif frame.kind is FrameKind.STDERR:
            rank.stderr.feed(frame.payload)
        elif frame.kind is FrameKind.STARTED:
            rank.pid = frame.facts["pid"]
        elif frame.kind is FrameKind.EXITED:
            rank.ended_with = frame.facts["status"]
            rank.peak_memory = frame.facts["peak_memory"]
        elif frame.kind is FrameKind.GROUP_GONE:
            rank.group_gone = True

    def _read_errors(self) -> None:
        data = self._chunk(self._process.stderr)
        if data:
            self.on_error_text(data)

    def _chunk(self, stream: IO[bytes] | None) -> bytes | None:
        """Return what can be read now: None where nothing can, empty at the stream's end."""
        assert stream is not None
        try:
            data = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return None
        if not data and stream.fileno() in self._selector.get_map():
            self._selector.unregister(stream.fileno())
        return data

    def _write(self) -> None:
        """Write what waits. A signal's handler may call it while it runs: that only adds to it."""
        descriptor = self._commands.fileno()
        is_left = not self._is_writing
        while is_left:
            self._is_writing = True
            try:
                while self._outgoing:
                    del self._outgoing[: os.write(descriptor, self._outgoing[:_CHUNK])]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._outgoing.clear()  # the end of its stdout says what has happened
            finally:
                self._watch(descriptor)
                self._is_writing = False
            # A handler may have added something before the last line.
            is_left = bool(self._outgoing) and descriptor not in self._selector.get_map()

    def _watch(self, descriptor: int) -> None:
        """Let the loop call `_write` once the pipe has room, if something waits."""
        is_watched = descriptor in self._selector.get_map()
        if self._outgoing and not is_watched:
            self._selector.register(descriptor, selectors.EVENT_WRITE, self._write)
        elif is_watched and not self._outgoing:
            self._selector.unregister(descriptor)

    # the end

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its agent has closed the connection"
        if (data := self._chunk(self._process.stderr)) is not None:
            self.on_error_text(data)
        program = "the agent" if self.host.is_here else "ssh"
        said = self.errors.text().strip().splitlines()[-3:]
        return ": ".join([f"{program} ended by {describe_status(status)}", *said])

    def _lose(self, why: str) -> None:
        if not self.is_lost:
            self.refusal = why
            self._process.send_signal(signal.SIGKILL)
            self._end_ranks()

    def _end_ranks(self) -> None:
        for rank in self.ranks.values():
            rank.group_gone = True
            if rank.ended_with is None:
                rank.ended_with = LOST
                rank.lost = f"its host {self.host.name} was lost, {self.refusal}"


def agent_command(host: HostSlots, ssh: Sequence[str]) -> list[str]:
    """Return the command that leads to the agent of ``host``. Nothing in it is secret."""
    agent = [sys.executable, "-P", "-m", AGENT]
    if host.is_here:
        return agent
    options = _SSH_OPTIONS if os.path.basename(ssh[0]) == "ssh" else ()
    return [*ssh, *options, host.name, f"exec {shlex.join(agent)}"]
