"""Questions to a rank and their answers, over plain blocking sockets.

A message is a length (4 bytes, big-endian) and that much JSON. On this host the kernel identifies
the asker (SO_PEERCRED). Between hosts each side first proves, over nonces of 32 bytes, that it
knows the key that the ranks of the job got when they met. If the job has certificates, that happens
over TLS::

    asker       nonce C
    answerer    nonce S, HMAC(key, "answers", C, S)
    asker       HMAC(key, "asks", C, S)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from time import monotonic
from typing import Any, TypeVar

from aiodist.credentials import Certificates
from aiodist.errors import HandshakeError, ProtocolError

T = TypeVar("T")

LONGEST_QUESTION = 1 << 16
LONGEST_ANSWER = 1 << 26
_AT_ONCE = 128
_LENGTH = struct.Struct(">I")
_NONCE = 32
_PROOF = hashlib.sha256().digest_size
_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("2l")


class JobCredentials:
    """The credentials by which ranks of one job know each other between hosts. Thread-safe."""

    def __init__(self, key: bytes, certificates: Certificates | None = None) -> None:
        """Create credentials. ``certificates``: of this rank, if the job uses TLS; read on first use."""
        self.key = key
        self._certificates = certificates

    @cached_property
    def asking(self) -> ssl.SSLContext | None:
        return None if self._certificates is None else self._certificates.client_context()

    @cached_property
    def answering(self) -> ssl.SSLContext | None:
        return None if self._certificates is None else self._certificates.server_context()


class Line:
    """A connected socket, which it owns, with a moment by which everything on it has to be over."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Everything has to be over ``seconds`` from now."""
        self._end = monotonic() + seconds

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def cut(self) -> None:
        """End the connection, also if another thread waits on it."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # also of one that is secured
        except OSError:
            pass  # it has just ended by itself

    def _secure(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Go on by TLS. Raises OSError, as ssl.SSLError is, where the other side does not."""
        self._sock.settimeout(self._left())
        self._sock.getpeername()  # raises where it has ended, as wrap_socket does, which leaks
        self._sock = context.wrap_socket(self._sock, server_side=server_side)

    def tell(self, message: bytes) -> None:
        self._send(_LENGTH.pack(len(message)) + message)

    def receive(self, longest: int) -> bytes:
        """Return the next message. Raises EOFError at the end, ProtocolError, OSError (also on timeout)."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > longest:
            raise ProtocolError(f"a message of {length} bytes, where {longest} is the most")
        return self._read(length)

    def authenticate_as_client(self, credentials: JobCredentials) -> None:
        """Prove both sides to each other. Raises HandshakeError or OSError for a stranger to the job."""
        if credentials.asking is not None:
            self._secure(credentials.asking, server_side=False)
        mine = os.urandom(_NONCE)
        self._send(mine)
        theirs = self._read(_NONCE)
        if not hmac.compare_digest(
            self._read(_PROOF), _proof(credentials.key, b"answers", mine + theirs)
        ):
            raise HandshakeError("the answering process does not belong to this job")
        self._send(_proof(credentials.key, b"asks", mine + theirs))

    def authenticate_as_server(self, credentials: JobCredentials) -> None:
        """Prove both sides to each other. Raises HandshakeError or OSError for a stranger to the job."""
        if credentials.answering is not None:
            self._secure(credentials.answering, server_side=True)
        theirs = self._read(_NONCE)
        mine = os.urandom(_NONCE)
        self._send(mine + _proof(credentials.key, b"answers", theirs + mine))
        if not hmac.compare_digest(
            self._read(_PROOF), _proof(credentials.key, b"asks", theirs + mine)
        ):
            raise HandshakeError("the asking process does not belong to this job")

    def _send(self, data: bytes) -> None:
        self._sock.settimeout(self._left())
        self._sock.sendall(data)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._sock.settimeout(self._left())
            chunk = self._sock.recv(min(count - len(data), 1 << 20))
            if not chunk:
                raise EOFError("the other side closed the connection")
            data += chunk
        return bytes(data)

    def _left(self) -> float:
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left


def _proof(key: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.new(key, role + nonces, hashlib.sha256).digest()


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return process id and user id at the other end of a Unix socket, as the kernel knows them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def is_trusted(uid: int) -> bool:
    """Return whether that user may inspect this user's processes anyway."""
    return uid in (0, os.geteuid())


def listener_at(name: str) -> int:
    """Return the process that listens at abstract ``name``, by its number in this pid namespace.

    0 if this pid namespace does not see it. Raises OSError if none listens, or too many ask it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.connect("\0" + name)
        return peer_of(sock)[0]


def ask_here(name: str, question: Mapping[str, Any], seconds: float) -> bytes:
    """Ask the rank that listens at abstract ``name`` on this host. Raises OSError, EOFError, ..."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with Line(sock, seconds) as line:
        _connect_here(sock, name, seconds)
        _, uid = peer_of(sock)
        if os.geteuid() != 0 and not is_trusted(uid):
            raise HandshakeError(f"another user, {uid}, listens there")
        line.tell(json.dumps(question).encode())
        return line.receive(LONGEST_ANSWER)


def _connect_here(sock: socket.socket, name: str, seconds: float) -> None:
    """Connect to abstract ``name``; wait while as many questions as it takes wait there already.

    Raises TimeoutError after ``seconds``, and OSError.
    """
    # With a time limit of Python's own, connect would fail at once in place of waiting.
    microseconds = max(1, int(seconds * 1e6))
    limit = _TIMEVAL.pack(*divmod(microseconds, 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        sock.connect("\0" + name)
    except BlockingIOError:
        raise TimeoutError("no answer in time") from None


def ask_there(
    address: str, credentials: JobCredentials, question: Mapping[str, Any], seconds: float
) -> bytes:
    """Ask the rank that listens at ``address`` (host:port). Raises OSError, HandshakeError, ..."""
    with connected(address, credentials, seconds) as line:
        line.tell(json.dumps(question).encode())
        return line.receive(LONGEST_ANSWER)


@contextmanager
def connected(address: str, credentials: JobCredentials, seconds: float) -> Iterator[Line]:
    """Connect to ``address`` and let both sides prove themselves. Raises as `ask_there`."""
    host, _, port = address.rpartition(":")
    with Line(socket.create_connection((host, int(port)), seconds), seconds) as line:
        line.authenticate_as_client(credentials)
        yield line


def ask_all(
    questions: Mapping[int, Callable[[float], T]], seconds: float
) -> dict[int, T | BaseException]:
    """Ask all ranks in threads; return what each returned or raised, TimeoutError for a silent rank.

    It returns within ``seconds``. Each of ``questions`` is called with the seconds to wait. More ranks
    than `all_at_once` has threads are asked one part after the other. Each part has a share of one
    half of the time, and the ranks that were silent are asked again in the rest.
    """
    end = monotonic() + seconds
    answers: dict[int, T | BaseException] = {}
    asked = dict(questions)
    for share in (1.0,) if len(asked) <= _AT_ONCE else (0.5, 1.0):
        parts = max(1, -(-len(asked) // _AT_ONCE))
        time_limit = max(0.01, (end - monotonic()) * share / parts)
        answers |= all_at_once({rank: partial(ask, time_limit) for rank, ask in asked.items()})
        asked = {rank: asked[rank] for rank in asked if isinstance(answers[rank], TimeoutError)}
    return answers


def all_at_once(calls: Mapping[int, Callable[[], T]]) -> dict[int, T | BaseException]:
    """Call all of ``calls`` in threads, and return what each returned or raised."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = {rank: pool.submit(call) for rank, call in calls.items()}
    return {rank: future.exception() or future.result() for rank, future in futures.items()}
