"""Hosts of a test's own: network namespaces on a switch, each with a cable that can be pulled.

Made with iproute2's ``ip``, which needs the right to administer networks. Nothing of the
machine's own network is touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

NETWORK = "10.111.0"
SECOND_NETWORK = "10.111.1"


class Hosts:
    """``names[i]`` is host i, whose only address besides loopback is ``address(i)`` on eth0."""

    def __init__(self, count: int) -> None:
        stem = f"aiodist-{os.getpid()}-{secrets.token_hex(2)}"
        self.switch = f"{stem}-switch"
        self.names = [f"{stem}-{number}" for number in range(count)]

    def make(self) -> None:
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for number, name in enumerate(self.names):
            _ip("netns", "add", name)
            port = f"port{number}"
            cable = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name]
            _ip("-n", self.switch, *cable)
            _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def address(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def second_cable(self) -> None:
        """Between the first two hosts, from eth1 to eth1, in a network of its own."""
        first, second = self.names[:2]
        _ip(
            "-n",
            first,
            *["link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns"],
            second,
        )
        for number, name in enumerate((first, second)):
            _ip("-n", name, "address", "add", f"{SECOND_NETWORK}.{number + 1}/24", "dev", "eth1")
            _ip("-n", name, "link", "set", "eth1", "up")

    def pull_cable(self, number: int) -> None:
        """Out of the switch's port: the host itself still sees a link, as over a real switch."""
        _ip("-n", self.switch, "link", "set", f"port{number}", "nomaster")

    def set_mtu(self, number: int, size: int) -> None:
        """Let the cable of host ``number`` carry frames of ``size`` bytes."""
        _ip("-n", self.switch, "link", "set", f"port{number}", "mtu", str(size))
        _ip("-n", self.names[number], "link", "set", "eth0", "mtu", str(size))

    def limit(self, number: int, rate: str) -> None:
        """Let host ``number`` send at ``rate`` at most, in tc's words: "100mbit"."""
        bucket = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        command = ["tc", "qdisc", "replace", "dev", "eth0", *bucket]
        subprocess.run(self.command(number, *command), check=True, capture_output=True, text=True)

    def command(self, number: int, *command: str) -> list[str]:
        """``command`` as it is run on host ``number``."""
        return ["ip", "netns", "exec", self.names[number], *command]

    def remove(self) -> None:
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """``count`` hosts; the test is skipped where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command (iproute2)")
    made = Hosts(count)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


def _ip(*words: str) -> None:
    command: Sequence[str] = ("ip", *words)
    subprocess.run(command, check=True, capture_output=True, text=True)
