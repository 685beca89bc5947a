"""The greeting on a connection to the TCP store, which proves protocol, version and job.

::

    client -> server   the line "AIODIST-STORE <version>", nonce C
    server -> client   the line "AIODIST-STORE <version>", nonce S, HMAC(secret, "server", C, S)
    client -> server   HMAC(secret, "client", C, S)

Each side proves that it knows the job's secret without showing it (RFC 2104 with SHA-256; nonces
of 32 bytes). A job without a secret uses the empty one. Nothing else is read from a stranger.

A client without a secret may ask for it before it greets::

    client -> server   the line "AIODIST-STORE secret"
    server -> client   the line "AIODIST-STORE <version>", two bytes of length, a credential

The credential is empty, or holds the secret in a form that only the job's own processes can read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable

from aiodist.errors import DistStoreError
from aiodist.wire.foreign_protocols import foreign_protocol

MAGIC = b"AIODIST-STORE "
VERSION = 1
GREETING = MAGIC + b"%d\n" % VERSION
_QUESTION = MAGIC + b"secret\n"
_LONGEST = 64
_LONGEST_CREDENTIAL = 4096
_NONCE = 32
_PROOF = hashlib.sha256().digest_size

# torch's client starts with the query "validate", a zero byte, and this number.
_TORCH_MAGIC = 0x3C85F7CE


Seal = Callable[[], Awaitable[bytes]]
"""Server side: returns the secret as a credential, empty if it tells none."""
Learn = Callable[[bytes], Awaitable[bytes]]
"""Client side: returns the secret in a credential. Raises DistStoreError if it does not trust it."""


class StrangerError(DistStoreError):
    """The other side is not of this job. ``first``: its first bytes, empty if it sent nothing."""

    first: bytes


async def ask_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the server's credential. Raises StrangerError, OSError or IncompleteReadError."""
    writer.write(_QUESTION)
    _check_greeting(await read_greeting(reader))
    length = int.from_bytes(await reader.readexactly(2), "big")
    if length > _LONGEST_CREDENTIAL:
        raise StrangerError(f"it tells a credential of {length} bytes", first=GREETING)
    return await reader.readexactly(length)


async def greet_server(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> None:
    """Prove both to each other, as the client. Raises StrangerError, OSError or IncompleteReadError."""
    mine = os.urandom(_NONCE)
    writer.write(GREETING + mine)
    _check_greeting(await read_greeting(reader))
    theirs = await reader.readexactly(_NONCE)
    if not hmac.compare_digest(
        await reader.readexactly(_PROOF), _proof(secret, b"server", mine + theirs)
    ):
        raise _wrong_secret()
    writer.write(_proof(secret, b"client", mine + theirs))


async def answer_client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    seal: Seal | None = None,
) -> bytes:
    """Prove the server to a client; return what proves the client, for `await_proof`.

    Raises StrangerError, OSError or IncompleteReadError.
    """
    first = await read_greeting(reader)
    if first == _QUESTION:
        credential = b"" if seal is None else await seal()
        _write(writer, GREETING + len(credential).to_bytes(2, "big") + credential)
        first = await read_greeting(reader)
    try:
        _check_greeting(first)
    except StrangerError:
        # A client of another version gets a greeting, too, so that its own error can say so.
        _write(writer, GREETING)
        raise
    theirs = await reader.readexactly(_NONCE)
    mine = os.urandom(_NONCE)
    _write(writer, GREETING + mine + _proof(secret, b"server", theirs + mine))
    return _proof(secret, b"client", theirs + mine)


async def await_proof(reader: asyncio.StreamReader, expected: bytes) -> None:
    """Return once the client has shown ``expected``. Raises StrangerError, OSError."""
    try:
        proof = await reader.readexactly(_PROOF)
    except asyncio.IncompleteReadError as error:
        raise StrangerError(
            "it left before it had shown that it knows this job's secret; it may belong to another "
            "job, or have been stopped",
            first=GREETING,
        ) from error
    if not hmac.compare_digest(proof, expected):
        raise _wrong_secret()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():  # else the server is closing, and uvloop raises RuntimeError
        writer.write(data)


def _check_greeting(first: bytes) -> None:
    if first != GREETING:
        raise StrangerError(describe_stranger(first), first=first)


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.new(secret, role + nonces, hashlib.sha256).digest()


def _wrong_secret() -> StrangerError:
    return StrangerError(
        "it does not know this job's secret, so it belongs to another job; give each job a port of "
        "its own, or all ranks of one job the same AIODIST_SECRET",
        first=GREETING,
    )


async def read_greeting(reader: asyncio.StreamReader) -> bytes:
    """Return the other side's first bytes: its line, or enough to show that it is no greeting.

    A stranger may wait for an answer without ever ending a line, so reading stops at the first byte
    that is wrong. Returns an empty text at the end of the stream.
    """
    first = b""
    while len(first) < _LONGEST and not first.endswith(b"\n"):
        # Read byte by byte near the end, so that no byte of the first frame is consumed.
        want = max(1, len(MAGIC) - len(first))
        chunk = await reader.read(want)
        first += chunk
        if not chunk or not (first.startswith(MAGIC) or MAGIC.startswith(first)):
            break
    return first


def describe_stranger(first: bytes) -> str:
    """Return text for a side that sends ``first`` instead of this version's greeting."""
    if first.startswith(MAGIC):
        theirs = first[len(MAGIC) :].strip().decode("ascii", "replace")
        theirs = theirs if theirs.isprintable() else ascii(theirs)  # logs quote it
        return (
            f"it speaks version {theirs} of the store's protocol and this side version {VERSION}; "
            "install the same aiodist on all hosts"
        )
    if not first:
        return "it closed the connection without a word"
    if first[0] == 0 and len(first) >= 5:
        number = first[1:5]
        if _TORCH_MAGIC in (int.from_bytes(number, "little"), int.from_bytes(number, "big")):
            return (
                "it is torch.distributed's TCPStore client, and this is no torch TCPStore; use "
                "aiodist on all ranks, or give torch a port of its own"
            )
    return foreign_protocol(first) or f"it said {first!r}"
