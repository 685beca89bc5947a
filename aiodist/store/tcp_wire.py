"""The protocol between the two sides of the TCP store.

After the greeting (`tcp_greeting`) come frames: four bytes of length, big-endian, and a msgpack
array. A request is ``[id, operation, *arguments]``. Its answer is ``[id, ok, value]``, in any
order; if ``ok`` is false, the value is the error's text. ``cancel`` takes the id of a waiting
request, withdraws it, and answers with the keys it still missed. ``set_will`` is answered with the
host name and process id of the server. A server that ends in good order says so with the id -1.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack

from aiodist.errors import DistStoreError

MAX_FRAME = 64 * 2**20
"""Bytes of one frame, which limits the size of a value."""

FAREWELL = -1
"""The id of the message that ends a connection in good order."""

_LENGTH = struct.Struct(">I")


def pack(message: Sequence[Any], max_frame: int) -> bytes:
    """Return one frame. Raises DistStoreError if it is too long."""
    body: bytes = msgpack.packb(message)
    if len(body) > max_frame:
        raise DistStoreError(
            f"a message of {len(body)} bytes is longer than the store takes ({max_frame} bytes): "
            "pass large data between ranks with send and recv, and small values through the store"
        )
    return _LENGTH.pack(len(body)) + body


def close_stream(writer: asyncio.StreamWriter) -> None:
    """Close a stream after what it has to send. Never raises."""
    try:
        writer.close()
    except OSError:
        # asyncio's TLS says goodbye at once. Where the other side has left without a goodbye, newer
        # versions of OpenSSL report that by an error that asyncio does not expect.
        writer.transport.abort()


def close_inherited(writers: Iterable[asyncio.StreamWriter]) -> None:
    """End the sockets of streams for this process alone, in a forked child.

    Their descriptors become /dev/null. The objects of asyncio or uvloop that own the numbers stay
    as they are, and may close them at any time.
    """
    numbers: set[int] = set()
    for writer in writers:
        sock = writer.get_extra_info("socket")
        if sock is not None:  # uvloop has none where the stream is closed
            numbers.add(sock.fileno())
    numbers.discard(-1)
    for number in numbers:  # first, as there may be no other descriptor to open /dev/null with
        os.close(number)
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers - {null}:
        os.dup2(null, number, inheritable=False)
    if null not in numbers:
        os.close(null)


async def read_message(reader: asyncio.StreamReader, max_frame: int) -> list[Any]:
    """Return the next frame's array. Raises DistStoreError for malformed bytes.

    Raises asyncio.IncompleteReadError at the end of the stream.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    # Check before allocating: the other side has not proven that the length is true.
    if length > max_frame:
        raise DistStoreError(f"a frame of {length} bytes is over the limit of {max_frame}")
    body = await reader.readexactly(length)
    try:
        message = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise DistStoreError(f"a frame of {length} bytes is no msgpack: {error}") from error
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[0], int):
        raise DistStoreError(f"a frame of {length} bytes is no message of the store")
    return message
