"""A switch with a delay and a rate, for links that are slow or distant.

``python -m tests.hosts.delaying_switch SECONDS BYTES_PER_SECOND PORT...`` forwards each frame that comes at
a port to the port of its receiver, ``SECONDS`` later, and no more bytes a second to each port than said.
It stands in for the kernel's netem, which not every kernel has. It reads frames by packet sockets, so
the hosts have to send frames as they are on a wire: `frames_as_on_a_wire`. Its frames are larger than
Ethernet's, so that a program in Python forwards a gigabit a second.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import itertools
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.hosts import Hosts

_ETH_P_ALL = 0x0003
_PACKET_OUTGOING = 4
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
"""ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO."""

_FRAME_BYTES = 1 << 16
_MTU = 32_000
_BUFFER_BYTES = 1 << 24
_QUEUE_SECONDS = 0.2
"""The longest that a frame waits for the rate; it is dropped otherwise, as by a router."""

ROOT = Path(__file__).parents[2]


def frames_as_on_a_wire(interface: str) -> None:
    """Have the kernel cut segments and compute checksums itself, not leave them to a device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = array.array("I", [command, 0])
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, _SIOCETHTOOL, request)


@contextmanager
def delaying_switch(network: Hosts, seconds: float, bytes_per_second: float) -> Iterator[None]:
    """Put this switch in place of the one of ``network``, as long as the block runs."""
    ports = [f"port{number}" for number in range(len(network.names))]
    wire = "from tests.hosts.delaying_switch import frames_as_on_a_wire as f; f('eth0')"
    for number in range(len(network.names)):
        network.pull_cable(number)
        network.set_mtu(number, _MTU)
        subprocess.run(network.command(number, sys.executable, "-c", wire), cwd=ROOT, check=True)
    module = [sys.executable, "-m", "tests.hosts.delaying_switch"]
    with subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            network.switch,
            *module,
            str(seconds),
            str(bytes_per_second),
            *ports,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as switch:
        assert switch.stdout is not None
        try:
            assert switch.stdout.readline() == b"ready\n"
            yield
            assert switch.poll() is None, "the switch has ended"
        finally:
            switch.kill()


def main() -> None:
    delay, rate, *ports = sys.argv[1:]
    selector = selectors.DefaultSelector()
    sockets = []
    for port in ports:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        wire.bind((port, 0))
        wire.setblocking(False)
        selector.register(wire, selectors.EVENT_READ)
        sockets.append(wire)
    print("ready", flush=True)
    _forward(selector, sockets, float(delay), float(rate))


def _forward(
    selector: selectors.BaseSelector, sockets: list[socket.socket], delay: float, rate: float
) -> None:
    at: dict[bytes, socket.socket] = {}  # behind which port an address is
    free_at = dict.fromkeys(sockets, 0.0)  # when a port has sent what waits for it
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    order = itertools.count()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            _send(port, frame)
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(patience):
            port = key.fileobj
            for frame in _frames(port):
                now = time.monotonic()
                at[frame[6:12]] = port
                known = at.get(frame[:6])
                for target in sockets if known is None else [known]:
                    leaves = max(now, free_at[target])
                    if target is port or leaves - now > _QUEUE_SECONDS:
                        continue
                    free_at[target] = leaves + len(frame) / rate
                    heapq.heappush(waiting, (leaves + delay, next(order), target, frame))


def _frames(port: socket.socket) -> Iterator[bytes]:
    """Yield the frames that wait at ``port``, without those that were sent from it."""
    for _ in range(64):
        try:
            frame, address = port.recvfrom(_FRAME_BYTES)
        except BlockingIOError:
            return
        if address[2] != _PACKET_OUTGOING:
            yield frame


def _send(port: socket.socket, frame: bytes) -> None:
    try:
        port.send(frame)
    except (BlockingIOError, OSError):
        return  # dropped, as by a router


if __name__ == "__main__":
    main()
