"""The handshake on a connection: both sides' ranks, and the proof that both belong to this job.

It takes three messages, before any other frame is read. Each side proves that it knows the job's
key without showing it, by an HMAC over both sides' nonces (RFC 2104 with SHA-256)::

    client -> server   HELLO    version, client rank, server rank, window, nonce C
    server -> client   WELCOME  version, server rank, window, nonce S, HMAC(key, "server", HELLO, WELCOME)
    client -> server   PROOF    HMAC(key, "client", HELLO, WELCOME)

A replayed HELLO meets a new nonce S, so its old PROOF is worthless. The window is how many bytes
the side that sends it buffers of messages without a posted receive.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

from aiodist.errors import HandshakeError

VERSION = 6
_MAGIC = b"AIOD"
_START = struct.Struct("<4sH")  # of every HELLO and WELCOME, in all versions to come
_HELLO = struct.Struct("<4sHIIQ32s")
_WELCOME = struct.Struct("<4sHIQ32s")
_PROOF_BYTES = hashlib.sha256().digest_size

MAX_BYTES = 256
"""No message of the handshake is longer."""

_MAX_REASON = 500
"""The most characters of a refusal that an error quotes."""


def refusal(message: bytes) -> str:
    """Return the text of a REJECT as one line of printable characters.

    The other side has proven nothing, and logs quote the text.
    """
    text = message.decode("utf-8", "replace")[:_MAX_REASON]
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _proof(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(key, role + transcript, hashlib.sha256).digest()


class Handshake:
    """One side of a handshake, without I/O. Feed it messages, send what it gives back.

    When ``done`` is true, ``peer_rank`` and ``peer_window`` are proven. Any ``receive`` may raise
    HandshakeError; the connection is then closed.
    """

    def __init__(self, key: bytes, rank: int, size: int, window: int) -> None:
        self.done = False
        self.peer_rank = -1
        self.peer_window = 0
        self._key = key
        self._rank = rank
        self._size = size
        self._window = window
        self._hello = b""
        self._transcript = b""
        self._expected_rank = -1

    def start(self, server_rank: int) -> bytes:
        """The client's first message, to the rank it means to reach."""
        self._expected_rank = server_rank
        self._hello = _HELLO.pack(
            _MAGIC, VERSION, self._rank, server_rank, self._window, os.urandom(32)
        )
        return self._hello

    def receive(self, message: bytes) -> bytes | None:
        """Take the other side's message; returns the answer to send, if there is one."""
        if self._hello and not self._transcript:
            return self._welcome_arrived(message)
        if not self._transcript:
            return self._hello_arrived(message)
        if self.done:
            raise HandshakeError("the handshake is over, another message of it arrived")
        if not hmac.compare_digest(message, _proof(self._key, b"client", self._transcript)):
            raise HandshakeError(_WRONG_KEY)
        self.done = True
        return None

    def _hello_arrived(self, message: bytes) -> bytes:
        _check_version(message)
        if len(message) != _HELLO.size:
            raise HandshakeError(f"a greeting of {len(message)} bytes is not aiodist's")
        _, _, rank, wanted, window, _ = _HELLO.unpack(message)
        if wanted != self._rank:
            raise HandshakeError(f"this is rank {self._rank}, rank {wanted} was wanted here")
        if rank >= self._size or rank == self._rank:
            raise HandshakeError(f"no rank {rank} may connect to rank {wanted} of {self._size}")
        self.peer_rank, self.peer_window = rank, window
        welcome = _WELCOME.pack(_MAGIC, VERSION, self._rank, self._window, os.urandom(32))
        self._transcript = message + welcome
        return welcome + _proof(self._key, b"server", self._transcript)

    def _welcome_arrived(self, message: bytes) -> bytes:
        _check_version(message)
        if len(message) != _WELCOME.size + _PROOF_BYTES:
            raise HandshakeError(f"an answer of {len(message)} bytes is not aiodist's")
        welcome, proof = message[: _WELCOME.size], message[_WELCOME.size :]
        _, _, rank, window, _ = _WELCOME.unpack(welcome)
        self._transcript = self._hello + welcome
        if not hmac.compare_digest(proof, _proof(self._key, b"server", self._transcript)):
            raise HandshakeError(_WRONG_KEY)
        if rank != self._expected_rank:
            raise HandshakeError(f"rank {rank} answered where rank {self._expected_rank} listens")
        self.peer_rank, self.peer_window = rank, window
        self.done = True
        return _proof(self._key, b"client", self._transcript)


_WRONG_KEY = "the other side does not know this job's key: it belongs to another job"


def _check_version(message: bytes) -> None:
    # Before the length: a message of another version may have another one.
    if len(message) < _START.size or message[: len(_MAGIC)] != _MAGIC:
        raise HandshakeError("the other side does not speak aiodist's protocol")
    version: int = _START.unpack_from(message)[1]
    if version != VERSION:
        raise HandshakeError(
            f"the other side speaks version {version} of the protocol, this rank version {VERSION}; "
            "install the same aiodist everywhere"
        )
