"""A wire of the test's own between two TCP ends, which damages one byte on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def damaging_proxy(port: int, offset: int, bits: int) -> AsyncIterator[int]:
    """Its port. ``bits`` of the byte at ``offset`` of what a client sends to ``port`` are flipped."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        for task in (_pass(reader, back, offset, bits), _pass(there, writer, -1, 0)):
            tasks.add(asyncio.create_task(task))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offset: int, bits: int
) -> None:
    position = 0
    try:
        while data := bytearray(await reader.read(1 << 16)):
            if position <= offset < position + len(data):
                data[offset - position] ^= bits
            position += len(data)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
