"""What the TCP store's two sides say to each other.

After the greeting (`tcp_greeting`) frames: four bytes of length, big-endian, and a msgpack array.
A request is ``[id, operation, *arguments]``; its answer ``[id, ok, value]``, in any order, where
a value that is not ok is the error's sentence. ``cancel`` takes the id of a waiting request,
withdraws it, and answers with the keys it still missed. ``bequeath`` is answered with the host name
and process id of the server. A server that ends in good order says so with the id -1.
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
"""Bytes of one frame, so the size of a value that the store takes."""

FAREWELL = -1
"""The id of the message that ends a connection in good order."""

_LENGTH = struct.Struct(">I")


def pack(message: Sequence[Any], max_frame: int) -> bytes:
    """One frame. Raises DistStoreError for one that is too long."""
    body: bytes = msgpack.packb(message)
    if len(body) > max_frame:
        raise DistStoreError(
            f"a message of {len(body)} bytes is longer than the store takes ({max_frame} bytes): "
            "pass large data between ranks with send and recv, and small values through the store"
        )
    return _LENGTH.pack(len(body)) + body


def close_inherited(owners: Iterable[asyncio.StreamWriter | asyncio.Server]) -> None:
    """In a forked child: end the sockets of streams and servers for this process alone.

    Their descriptors become /dev/null: the objects that own the numbers, asyncio's or uvloop's,
    stay as they are, and may close them whenever they like.
    """
    numbers: list[int] = []
    for owner in owners:
        if isinstance(owner, asyncio.StreamWriter):
            numbers.append(owner.get_extra_info("socket").fileno())
        else:
            numbers.extend(sock.fileno() for sock in owner.sockets)
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        if number >= 0:
            os.dup2(null, number, inheritable=False)
    os.close(null)


async def read_message(reader: asyncio.StreamReader, max_frame: int) -> list[Any]:
    """The next frame's array. Raises DistStoreError for bytes that no side of the store sends.

    asyncio.IncompleteReadError at the end of the stream.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    # Before any memory is taken for it: the length is the other side's word.
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
