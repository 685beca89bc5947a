"""Short messages in flight between two processes: aiodist, asyncio streams with msgpack, pyzmq.

    python -m benchmarks.messages [--count 20000] [--rounds 3]

Peers take turns, `rounds` times each. Rank 0 sends ``count`` messages of 64 bytes, rank 1 receives
them, with at most `IN_FLIGHT` under way. For each peer it prints the best rate, and the processor's
time that sender and receiver spend on a message: where other work shares the cores, that is what
can be compared. ``object_1MiB`` and ``tensor_1MiB`` are arrays of 1 MiB, one at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import numpy as np

import aiodist as dist
from benchmarks.process_pair import measure_pair

IN_FLIGHT = 256
LARGE = 400
PAYLOAD = b"x" * 64
_LENGTH = struct.Struct("<I")

Run = Callable[[int, int], Awaitable[None]]
"""(rank, number of messages) -> None, when this rank's part is done."""


async def tensors(rank: int, count: int) -> None:
    """Send arrays of 64 bytes by isend, and receive them by irecv."""
    if rank == 0:
        array = np.zeros(64, np.uint8)
        for start in range(0, count, IN_FLIGHT):
            works = [dist.isend(array, 1) for _ in range(min(IN_FLIGHT, count - start))]
            for work in works:
                await work
        return
    arrays = [np.zeros(64, np.uint8) for _ in range(IN_FLIGHT)]
    for start in range(0, count, IN_FLIGHT):
        receives = [dist.irecv(array, 0) for array in arrays[: count - start]]
        for receive in receives:
            await receive


async def objects(rank: int, count: int) -> None:
    """Send and receive bytes by send_object and recv_object."""
    for start in range(0, count, IN_FLIGHT):
        number = min(IN_FLIGHT, count - start)
        if rank == 0:
            sends = [dist.send_object(PAYLOAD, 1) for _ in range(number)]
            for send in sends:
                await send
        else:
            receives = [dist.recv_object(0) for _ in range(number)]
            for receive in receives:
                assert (await receive).obj == PAYLOAD


async def stream(rank: int, count: int) -> None:
    """Send and receive bytes over a stream."""
    async with dist.open_stream(1 - rank, window=IN_FLIGHT) as peer:
        if rank == 0:
            for _ in range(count):
                await peer.send(PAYLOAD)
        else:
            received = 0
            async for _ in peer:
                received += 1
            assert received == count


async def tensor_large(rank: int, count: int) -> None:
    """Send arrays of 1 MiB, and receive them without a buffer."""
    array = np.zeros(1 << 20, np.uint8)
    for _ in range(count):
        await (dist.send(array, 1) if rank == 0 else dist.recv(src=0))


async def object_large(rank: int, count: int) -> None:
    """Send objects that hold an array of 1 MiB."""
    obj = {"array": np.zeros(1 << 20, np.uint8)}
    for _ in range(count):
        await (dist.send_object(obj, 1) if rank == 0 else dist.recv_object(0))


async def asyncio_streams(rank: int, count: int, path: str) -> None:
    """Send and receive bytes over a Unix socket of asyncio, packed by msgpack."""
    if rank == 0:
        over = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for number in range(count):
                packed = msgpack.packb(PAYLOAD)
                writer.write(_LENGTH.pack(len(packed)) + packed)
                if number % IN_FLIGHT == IN_FLIGHT - 1:
                    await writer.drain()
            await writer.drain()
            await reader.read(1)
            writer.close()
            over.set_result(None)

        server = await asyncio.start_unix_server(serve, path)
        await dist.barrier()
        await over
        server.close()
        return
    await dist.barrier()
    reader, writer = await asyncio.open_unix_connection(path)
    for _ in range(count):
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        assert msgpack.unpackb(await reader.readexactly(length)) == PAYLOAD
    writer.write(b"x")
    await writer.drain()
    writer.close()


async def zmq_sockets(rank: int, count: int, path: str) -> None:
    """Send and receive bytes over an IPC socket of pyzmq's asyncio interface, packed by msgpack."""
    import zmq
    import zmq.asyncio

    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
        if rank == 0:
            pair.bind(f"ipc://{path}")
            await dist.barrier()
            for _ in range(count):
                await pair.send(msgpack.packb(PAYLOAD))
            await pair.recv()
        else:
            await dist.barrier()
            pair.connect(f"ipc://{path}")
            for _ in range(count):
                assert msgpack.unpackb(await pair.recv()) == PAYLOAD
            await pair.send(b"")


async def _measure(rank: int, folder: str, count: int, rounds: int, to: Connection) -> None:
    await dist.init_process_group(
        init_method=f"file://{folder}/store", rank=rank, world_size=2, backend="aiodist"
    )
    peers: dict[str, tuple[Run, int]] = {
        "tensor": (tensors, count),
        "object": (objects, count),
        "stream": (stream, count),
        "tensor_1MiB": (tensor_large, LARGE),
        "object_1MiB": (object_large, LARGE),
    }
    others = {"asyncio_streams": asyncio_streams, "pyzmq": zmq_sockets}
    best: dict[str, tuple[float, float]] = {}
    for number in range(rounds):
        for name, run in others.items():
            path = f"{folder}/{name}{number}"
            peers[name] = (lambda r, n, run=run, path=path: run(r, n, path)), count
        for name, (run, n) in peers.items():
            await run(rank, IN_FLIGHT) if name not in others else None
            await dist.barrier()
            started, cpu = time.perf_counter(), time.process_time()
            await run(rank, n)
            cpu = (time.process_time() - cpu) / n
            await dist.barrier()
            wall = (time.perf_counter() - started) / n
            old = best.get(name, (wall, cpu))
            best[name] = min(old[0], wall), min(old[1], cpu)
    await dist.destroy_process_group()
    to.send(best)


def _process(rank: int, folder: str, count: int, rounds: int, to: Connection) -> None:
    asyncio.run(_measure(rank, folder, count, rounds, to))


def main() -> None:
    """Measure, and print a table and the figures as JSON."""
    found: list[dict[str, tuple[float, float]]] = measure_pair(
        _process, __doc__, count=20_000, rounds=3
    )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {socket.gethostname()}")
    print("| peer | a second | sender, us | receiver, us |\n| --- | --- | --- | --- |")
    figures: dict[str, Any] = {}
    for name, (wall, sender) in found[0].items():
        receiver = found[1][name][1]
        figures[name] = {"rate": 1 / wall, "sender_us": sender * 1e6, "receiver_us": receiver * 1e6}
        print(f"| {name} | {1 / wall:,.0f} | {sender * 1e6:.1f} | {receiver * 1e6:.1f} |")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
