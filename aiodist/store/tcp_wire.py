"""What the TCP store's two sides say to each other.

First each side sends one line, ``AIODIST-STORE <version>\\n``, the client before the server. Then
frames: four bytes of length, big-endian, and a msgpack array. A request is ``[id, operation,
*arguments]``; its answer ``[id, ok, value]``, in any order, where a value that is not ok is the
error's sentence. ``cancel`` takes the id of a waiting request, withdraws it, and answers with the
keys it still missed.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from aiodist.errors import DistStoreError

MAGIC = b"AIODIST-STORE "
VERSION = 1
GREETING = MAGIC + b"%d\n" % VERSION
LONGEST_GREETING = 64
MAX_FRAME = 64 * 2**20
"""Bytes of one frame, so the size of a value that the store takes."""

_LENGTH = struct.Struct(">I")
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC", b"TRAC")
# torch's client starts with the query "validate", a zero byte, and this number.
_TORCH_MAGIC = 0x3C85F7CE


def pack(message: Sequence[Any], max_frame: int) -> bytes:
    """One frame. Raises DistStoreError for one that is too long."""
    body: bytes = msgpack.packb(message)
    if len(body) > max_frame:
        raise DistStoreError(
            f"a message of {len(body)} bytes is longer than the store takes ({max_frame} bytes): "
            "pass large data between ranks with send and recv, and small values through the store"
        )
    return _LENGTH.pack(len(body)) + body


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


async def read_greeting(reader: asyncio.StreamReader) -> bytes:
    """The other side's first bytes: its line, or as much as shows that it is none of ours.

    A stranger may wait for an answer without ever ending a line, so reading stops at the first
    byte that is wrong. Empty at the end of the stream.
    """
    first = b""
    while len(first) < LONGEST_GREETING and not first.endswith(b"\n"):
        # Byte by byte near the end, so that no byte of the first frame is taken.
        want = max(1, len(MAGIC) - len(first))
        chunk = await reader.read(want)
        first += chunk
        if not chunk or not (first.startswith(MAGIC) or MAGIC.startswith(first)):
            break
    return first


def describe_stranger(first: bytes) -> str:
    """Who says ``first`` instead of this version's greeting, as far as it can be told."""
    if first.startswith(MAGIC):
        theirs = first[len(MAGIC) :].strip().decode("ascii", "replace")
        return (
            f"it speaks version {theirs} of the store's protocol and this side version {VERSION}; "
            "install the same aiodist on all hosts"
        )
    if not first:
        return "it closed the connection without a word"
    if first.startswith(_HTTP):
        return f"it is an HTTP client (it said {first!r})"
    if first.startswith(b"HTTP/"):
        return f"it is an HTTP server (it said {first!r})"
    if first.startswith(b"\x16\x03"):
        return "it speaks TLS"
    if first[0] == 0 and len(first) >= 5:
        number = first[1:5]
        if _TORCH_MAGIC in (int.from_bytes(number, "little"), int.from_bytes(number, "big")):
            return (
                "it is torch.distributed's TCPStore client, and this is no torch TCPStore; use "
                "aiodist on all ranks, or give torch a port of its own"
            )
    return f"it said {first!r}"
