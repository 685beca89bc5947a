"""Sockets that no connection owns yet: a forked child closes what its parent goes on to connect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator

import pytest

from aiodist.deadline import Deadline
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.striped import StripedTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.tls import TlsTransport
from aiodist.transport.unix import UnixTransport
from tests.certificates import tls_files
from tests.limits import until

HOST = "127.0.0.1"
UNIX_NAME = f"aiodist-test-{os.getpid()}"


def open_sockets() -> set[str]:
    links = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            links.add(os.readlink(f"/proc/self/fd/{number}"))
    return {link for link in links if link.startswith("socket:")}


def left_in_child(before: set[str], close_in_child: Callable[[], None]) -> int:
    """How many sockets beside those of ``before`` a forked child has after ``close_in_child()``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        try:
            close_in_child()
            os._exit(len(open_sockets() - before))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def listening(family: int, address: object, *, is_full: bool) -> Iterator[socket.socket]:
    """A listener that accepts nothing; ``is_full``: and whose queue takes no more connections."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(family))
        listener.bind(address)  # type: ignore[arg-type]  # whichever the family has
        listener.listen(0 if is_full else 8)
        for _ in range(2 if is_full else 0):
            client = opened.enter_context(socket.socket(family))
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "stripes"])
async def test_a_forked_child_closes_what_its_parent_connects(kind: str) -> None:
    transport: Transport
    with (
        listening(socket.AF_INET, (HOST, 0), is_full=False) as silent,
        listening(socket.AF_INET, (HOST, 0), is_full=True) as full,
        listening(socket.AF_UNIX, f"\0{UNIX_NAME}", is_full=True),
    ):
        if kind == "tcp":
            transport, address = TcpTransport(HOST), f"tcp://{HOST}:{port_of(full)}"
        elif kind == "unix":
            transport, address = UnixTransport(), f"unix:@{UNIX_NAME}"
        elif kind == "tls":
            transport = TlsTransport(HOST, tls_files())
            address = f"tls://{HOST}:{port_of(silent)}"
        else:
            transport = StripedTransport([HOST], 2)
            address = f"stripes://{HOST}:{port_of(silent)},{HOST}:{port_of(full)}"
        before = open_sockets()
        connecting = asyncio.create_task(transport.connect(address, Deadline(20)))
        await until(lambda: len(open_sockets() - before) == (2 if kind == "stripes" else 1))
        await asyncio.sleep(0.05)  # of tls: until its handshake waits
        assert left_in_child(before, transport.close_in_child) == 0
        assert not connecting.done()  # the parent's go on
        assert open_sockets() - before
        connecting.cancel()
        await asyncio.wait([connecting])
        assert open_sockets() == before


async def test_a_forked_child_closes_a_handshake_of_tls_that_its_parent_is_in() -> None:
    accepted: list[Connection] = []
    listener = await TlsTransport(HOST, tls_files()).listen(accepted.append)
    try:
        with socket.create_connection((HOST, int(listener.address.rpartition(":")[2]))):
            before = open_sockets()
            await until(lambda: len(open_sockets() - before) == 1)
            assert left_in_child(before, listener.close_in_child) == 0
    finally:
        await listener.close()
