"""Names that vanish, directories that go, and other users who are refused."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.testing.sinks import Sink
from aiodist.transport.base_transport import Connection
from aiodist.transport.unix import UnixTransport

linux = pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")

LISTEN = """
import asyncio, signal
from aiodist.transport.unix import UnixTransport

async def main():
    listener = await UnixTransport().listen(lambda connection: connection.abort())
    print(listener.address, flush=True)
    signal.pause()

asyncio.run(main())
"""


def listening_process() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)


def names_in_the_kernel() -> str:
    return Path("/proc/net/unix").read_text()


@linux
async def test_the_name_of_a_killed_process_is_gone() -> None:
    process = listening_process()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        (await UnixTransport().connect(address, Deadline(5))).abort()
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(DistNetworkError, match=address):
        await UnixTransport().connect(address, Deadline(5))
    assert address.removeprefix("unix:") not in names_in_the_kernel()


@linux
async def test_an_abstract_name_is_nowhere_on_disk() -> None:
    listener = await UnixTransport().listen(lambda connection: connection.abort())
    assert listener.address.startswith("unix:@")
    await listener.close()


async def test_a_path_is_private_and_goes_with_its_listener() -> None:
    listener = await UnixTransport(abstract=False).listen(lambda connection: connection.abort())
    path = Path(listener.address.removeprefix("unix:"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await listener.close()
    assert not path.parent.exists()


@linux
async def test_other_users_are_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accepted: list[Connection] = []
    transport = UnixTransport()
    listener = await transport.listen(accepted.append)
    name = "\0" + listener.address.removeprefix("unix:@")
    me = os.geteuid()
    monkeypatch.setattr("aiodist.transport.unix.os.geteuid", lambda: me + 1)
    with pytest.raises(DistNetworkError, match=f"{listener.address}: it belongs to user {me}"):
        await transport.connect(listener.address, Deadline(5))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    assert accepted == []
    assert f"process of user {me}" in caplog.text
    await listener.close()


@pytest.mark.parametrize("address", ["", "unix:", "unix:@", "unix:relative", "tcp://host:1"])
async def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidUsageError, match="unix:/path"):
        await UnixTransport().connect(address, Deadline(1))


@linux
async def test_a_full_backlog_is_waited_for_until_the_deadline() -> None:
    name = f"aiodist-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as full:
        full.bind("\0" + name)
        full.listen(0)
        transport = UnixTransport()
        connections = []

        async def fill() -> None:
            while True:
                connections.append(await transport.connect(f"unix:@{name}", Deadline(0.05)))

        with pytest.raises(DistNetworkError, match=f"timed out connecting to unix:@{name}"):
            await fill()
        assert connections
        waiting = asyncio.create_task(transport.connect(f"unix:@{name}", Deadline(5)))
        await asyncio.sleep(0)
        assert not waiting.done()
        for _ in connections:
            full.accept()[0].close()
        connections.append(await waiting)
        sink = Sink()
        connections[0].start(sink)
        await sink.ended()
        for connection in connections:
            connection.abort()
