"""What a 4-byte all_reduce over TCP is made of: one layer more in each row.

    python -m benchmarks.layers [--rounds 5] [--count 2000]

Two processes exchange 4 bytes over the loopback, each way at once, and wait for the other's. Every
row adds a layer of the engine to the one above it. Layers take turns, ``rounds`` times each; the
table shows the median of all exchanges, the 99th percentile, and what the layer adds to the median.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from typing import cast

import numpy as np
import uvloop

import aiodist as dist
from aiodist.deadline import Deadline
from aiodist.transport.base_transport import Connection
from aiodist.transport.tcp import TcpTransport
from benchmarks.process_pair import measure_pair

BYTES = b"4444"

Layer = Callable[[], Awaitable[None]]


def _by_polling(sock: socket.socket) -> Callable[[], None]:
    """Send, then look for the answer without a pause."""

    def exchange() -> None:
        sock.send(BYTES)
        while True:
            try:
                if sock.recv(4):
                    return
            except BlockingIOError:
                pass

    return exchange


def _by_sleeping(sock: socket.socket) -> Callable[[], None]:
    """Send, then sleep in poll until the answer is there."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)

    def exchange() -> None:
        sock.send(BYTES)
        poll.poll()
        sock.recv(4)

    return exchange


class _Protocol(asyncio.Protocol):
    """A bare protocol of the event loop; `exchange` sends and waits."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._came: asyncio.Future[None] | None = None
        self._early = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not registered as one

    def data_received(self, data: bytes) -> None:
        self._early += len(data)
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    async def exchange(self) -> None:
        assert self.transport is not None
        self.transport.write(BYTES)
        if not self._early:
            self._came = asyncio.get_running_loop().create_future()
            await self._came
            self._came = None
        self._early -= len(BYTES)


class _Receiver:
    """The receiver of a connection of the engine's transport; `exchange` sends and waits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(4096))
        self._came: asyncio.Future[None] | None = None
        self._early = 0
        connection.start(self)

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        self._early += count
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def lost(self, error: BaseException | None) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_exception(error or EOFError())

    async def exchange(self) -> None:
        self._connection.send((BYTES,))
        if not self._early:
            self._came = asyncio.get_running_loop().create_future()
            await self._came
            self._came = None
        self._early -= len(BYTES)


async def _connected(rank: int) -> socket.socket:
    """Return a TCP connection to the other rank, without Nagle's delay."""
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            await dist.send_object(server.getsockname()[1], 1)
            await dist.barrier()
            sock, _ = server.accept()
    else:
        port = (await dist.recv_object(0)).obj
        sock = socket.create_connection(("127.0.0.1", port))
        await dist.barrier()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


async def _transport(rank: int) -> Connection:
    """Return a connection of the engine's TCP transport to the other rank."""
    transport = TcpTransport("127.0.0.1")
    if rank:
        address = (await dist.recv_object(0)).obj
        return await transport.connect(address, Deadline(10.0))
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    listener = await transport.listen(accepted.set_result)
    await dist.send_object(listener.address, 1)
    connection = await accepted
    await listener.close()
    return connection


async def _layers(rank: int) -> dict[str, Callable[[], Awaitable[None] | None]]:
    loop, other = asyncio.get_running_loop(), 1 - rank
    sock = await _connected(rank)
    _, protocol = await loop.create_connection(_Protocol, sock=await _connected(rank))
    receiver = _Receiver(await _transport(rank))
    mine, theirs = np.ones(1, np.float32), np.empty(1, np.float32)

    async def messages() -> None:
        sent = dist.isend(mine, other)
        await dist.irecv(theirs, other)
        await sent

    async def all_reduce() -> None:
        mine[0] = 1
        await dist.all_reduce(mine)

    return {
        "sockets, polled": _by_polling(sock),
        "sockets, a sleep and a wake-up": _by_sleeping(sock),
        "a protocol of uvloop": protocol.exchange,
        "the engine's transport": receiver.exchange,
        "isend and irecv": messages,
        "all_reduce": all_reduce,
    }


async def _measure(rank: int, folder: str, count: int, rounds: int, to: Pipe) -> None:
    await dist.init_process_group(
        init_method=f"file://{folder}/store", rank=rank, world_size=2, backend="aiodist"
    )
    layers = await _layers(rank)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        for name, exchange in layers.items():
            for number in range(-100, count):
                start = time.perf_counter()
                waiting = exchange()
                if waiting is not None:
                    await waiting
                if number >= 0:
                    times[name].append(time.perf_counter() - start)
            await dist.barrier()
    await dist.destroy_process_group()
    to.send(times)


def _process(rank: int, folder: str, count: int, rounds: int, to: Pipe) -> None:
    os.environ.update(AIODIST_TRANSPORT="tcp", AIODIST_SOCKET_IFNAME="lo")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(rank, folder, count, rounds, to))


def main() -> None:
    """Measure, and print a table and the figures as JSON."""
    found: list[dict[str, list[float]]] = measure_pair(_process, __doc__, count=2000, rounds=5)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}")
    print("| layer | median, us | p99, us | adds, us |\n| --- | ---: | ---: | ---: |")
    figures, before = {}, 0.0
    for name in found[0]:
        slower = np.maximum(found[0][name], found[1][name]) * 1e6
        median, p99 = np.percentile(slower, [50, 99])
        figures[name] = {"median_us": float(median), "p99_us": float(p99)}
        adds = f"{median - before:.1f}" if before else ""
        print(f"| {name} | {median:.1f} | {p99:.1f} | {adds} |")
        before = median
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
