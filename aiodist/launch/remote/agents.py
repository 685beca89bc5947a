"""The agents of all hosts of a job, as the launcher's loop uses them."""

from __future__ import annotations

import ipaddress
import os
import re
import selectors
import time
from collections.abc import Collection, Mapping, Sequence

from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.launch.outlets import ScreenOutlet
from aiodist.launch.output import Console
from aiodist.launch.output_streams import LineStream
from aiodist.launch.process import Watchdog
from aiodist.launch.remote.agent_connection import END_SECONDS, AgentConnection
from aiodist.launch.remote.agent_frames import FrameKind
from aiodist.launch.remote.host_list import HostSlots

ANSWER_SECONDS = 60.0
"""How long a host may take to answer."""

_OF_THE_SESSION = re.compile(
    r"HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|HOSTNAME|HOST|TMPDIR|TERM|DISPLAY|WINDOWID|MAIL|_"
    r"|AIODIST_HOST_ID|(?:SSH|XDG|DBUS|LC|BASH_FUNC)_.*"
)
"""Variables that describe the launcher's machine and session; a host has its own."""


class Agents:
    """A context manager: no agent, and nothing that one has started, outlives it."""

    def __init__(
        self, hosts: Sequence[HostSlots], ssh: Sequence[str], console: Console, watchdog: Watchdog
    ) -> None:
        """``ssh``: the command that leads to a host. ``watchdog``: gets the pid of each process."""
        self._hosts, self._ssh, self._watchdog = hosts, ssh, watchdog
        self._console = console
        self.connections: list[AgentConnection] = []
        self.streams: list[LineStream] = []
        """What ssh and the agents write to stderr, for the loop to show."""

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self.connections:
            connection.hang_up()
        until = time.monotonic() + END_SECONDS  # of all hosts together: they may all be cut off
        for connection in self.connections:
            connection.close(until)
            self._take_back(connection)

    def connect(
        self,
        selector: selectors.BaseSelector,
        environment: Mapping[str, str],
        port: int | None,
        given: Collection[str] = (),
    ) -> None:
        """Start towards all hosts at once; `are_ready` says when all have answered.

        ``port``: for rank 0 to listen on; None for a free one. ``given``: as of `portable`. Raises
        InvalidUsageError without the program that leads to a host, or without a working directory,
        and OSError if the system refuses a process.
        """
        forwarded = portable(environment, given)
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            raise InvalidUsageError(
                "the working directory is gone, and ranks on all hosts are to work there: start the "
                "job in a folder that exists"
            ) from None
        for number, host in enumerate(self._hosts):
            try:
                connection = AgentConnection(host, self._ssh, selector)
            except FileNotFoundError:
                raise InvalidUsageError(
                    f"there is no program {self._ssh[0]!r} to reach {host.name} by: install "
                    "OpenSSH's client, or name another with --ssh"
                ) from None
            self.connections.append(connection)
            self._watchdog.announce(connection.pid)
            reserved = None if number else port or 0
            connection.send(FrameKind.PREPARE, folder=folder, environment=forwarded, port=reserved)

    @property
    def are_ready(self) -> bool:
        """Whether all hosts have answered. Raises DistNetworkError for one that cannot."""
        now = time.monotonic()
        for connection in self.connections:
            if connection.is_lost:
                raise DistNetworkError(
                    f"no rank can be started on {connection.host.name}: {connection.refusal}"
                )
            if not connection.is_ready and now - connection.started_at > ANSWER_SECONDS:
                raise DistNetworkError(
                    f"{connection.host.name} has not answered within {ANSWER_SECONDS:g} s: does "
                    "ssh reach it, and is aiodist installed there?"
                )
        if not all(connection.is_ready for connection in self.connections):
            return False
        for connection in self.connections:
            prefix = f"[{connection.host.name}] ".encode()
            stream = LineStream(-1, [ScreenOutlet(self._console.stderr, prefix)], None)
            connection.on_error_text = stream.feed
            self.streams.append(stream)
        return True

    def meeting_place(self) -> tuple[str, int]:
        """Return the address of rank 0's host, as the other hosts reach it, and the port there."""
        first, *others = self.connections
        assert first.port is not None
        address = first.address
        if first.host.is_here:
            address = next((other.launcher for other in others if other.launcher), "127.0.0.1")
        elif _is_loopback(address) and any(not _is_loopback(other.address) for other in others):
            address = first.host.name.rpartition("@")[2]
        return address, first.port

    def tick(self, looked_at: float) -> None:
        """Do what is due for every host. ``looked_at``: as of `AgentConnection.tick`."""
        for connection in self.connections:
            connection.tick(looked_at)
            self._take_back(connection)

    def ping(self) -> None:
        """Tell the hosts that the launcher lives, where that is due, while it waits to write output."""
        for connection in self.connections:
            connection.ping()

    def _take_back(self, connection: AgentConnection) -> None:
        """Tell the watchdog if the group of ``connection`` is empty: its number may soon be reused."""
        if connection.is_announced and not connection.group_alive:
            connection.is_announced = False
            self._watchdog.take_back(connection.pid)

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until `tick` has something to do."""
        return min(connection.seconds_to_wait(now) for connection in self.connections)


def portable(environment: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of ``environment`` that mean the same on another host.

    ``given``: names of variables that the user gave to all hosts.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in given or not _OF_THE_SESSION.fullmatch(name)
    }


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return not address
