"""TLS 1.3 over TCP, both sides with a certificate: addresses ``tls://host:port``.

A connection is handed out when its handshake is over, so that nothing is read from a stranger
before. Encryption copies every byte once on each side, and the payload still lands in the posted
tensor: OpenSSL decrypts into it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import traceback
from collections.abc import Sequence
from typing import Any, cast

from aiodist.credentials import Certificates, tls_refusal
from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.transport.base_transport import Connection, OnAccept, Receiver
from aiodist.transport.callbacks import hand_over
from aiodist.transport.connecting import UnansweredError, readable, within, writable
from aiodist.transport.pending_handshakes import PendingHandshakes
from aiodist.transport.socket_listener import SocketListener
from aiodist.transport.stream_socket import SocketConnection
from aiodist.transport.tcp import TcpTransport, no_answer, set_options

SCHEME = "tls"

JOIN_BYTES = 64 << 10
"""Small parts up to this together become one record and one system call."""

_MOST_HANDSHAKES = 1024
"""Ranks that may be in the handshake with one listener at the same moment."""


class TlsTransport(TcpTransport):
    """Encrypted and authenticated streams between hosts. Parameters as for `TcpTransport`."""

    scheme = SCHEME

    def __init__(
        self, host: str, certificates: Certificates, *, source_hosts: Sequence[str] = ()
    ) -> None:
        """Raises InvalidUsageError for certificates that cannot be loaded."""
        super().__init__(host, source_hosts=source_hosts)
        self._server = certificates.server_context()
        self._client = certificates.client_context()

    async def listen(self, on_accept: OnAccept) -> SocketListener:
        reception = _Reception(self._server, on_accept)
        listener = await self.listen_raw(
            on_accept, reception.wrap, reception.close, reception.close_in_child
        )
        reception.pending.who = f"the listener at {listener.address}"
        return listener

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        secured: _Secured | None = None
        try:
            # One limit for both steps, of the time in which the loop turns.
            async with within(deadline):
                sock = await self.connected_socket(address, Deadline.never())
                secured = _Secured(self._client, sock, server_side=False)
                try:
                    with self._connecting.hold(secured):
                        await secured.handshake()
                except BaseException:
                    secured.close()
                    raise
        except TimeoutError as error:
            if secured is None:
                raise no_answer(address, deadline) from error
            raise UnansweredError(
                f"timed out connecting to {address} after {deadline.timeout} s: the handshake of "
                "TLS was not answered (is its process stopped, or does it speak plain TCP?)"
            ) from error
        except OSError as error:
            if secured is None:  # which wrap_socket raises where the stream has ended already
                raise DistNetworkError(
                    f"cannot connect to {address}: it hung up at once: {_reason(error)}"
                ) from error
            raise DistNetworkError(
                f"cannot connect to {address}: TLS was refused: {_reason(error)}; give all ranks "
                "valid certificates of one authority"
            ) from error
        return TlsConnection(secured, address)


class TlsConnection(SocketConnection):
    """One end of a secured stream."""

    def __init__(self, secured: _Secured, peer_name: str) -> None:
        super().__init__(cast(socket.socket, secured), SCHEME, peer_name)
        self._secured = secured

    def start(self, receiver: Receiver) -> None:
        super().start(receiver)
        self._again_if_pending()

    def _on_readable(self) -> None:
        super()._on_readable()
        self._again_if_pending()

    def _again_if_pending(self) -> None:
        # What is decrypted and was left for fairness, or a failure behind it: no event of the socket
        # will speak of it.
        secured = self._secured
        reads = self._receiver is not None and not self._end_of_input and secured.fileno() >= 0
        if reads and (secured.ended or secured.pending()):
            self._loop.call_soon(self._read_on)


class _Secured:
    """An ssl.SSLSocket that blocks, fills and gathers as a plain non-blocking socket does."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, *, server_side: bool) -> None:
        sock.setblocking(False)
        try:
            self._ssl = context.wrap_socket(
                sock, server_side=server_side, do_handshake_on_connect=False
            )
        except BaseException as error:
            _close_half_made(error)
            sock.close()
            raise
        self.ended = False
        """Whether the stream has ended, perhaps behind the bytes that were read."""
        self._failure: OSError | None = None  # how it ended behind them

    def detach(self) -> int:
        return self._ssl.detach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ssl, name)

    async def handshake(self) -> None:
        """Raises OSError, of which ssl.SSLError is one."""
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await readable(self._ssl)
            except ssl.SSLWantWriteError:
                await writable(self._ssl)
            else:
                return

    def recv_into(self, buffer: Any) -> int:
        """As much as there is: fewer bytes than asked for mean that no more has arrived."""
        if self._failure is not None:
            raise self._failure
        view = memoryview(buffer)
        count = 0
        while count < len(view):
            try:
                got = self._ssl.recv_into(view[count:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if count:
                    return count
                raise BlockingIOError from None
            except OSError as error:
                if not count:
                    raise
                got, self._failure = 0, error
            if not got:
                self.ended = True
                return count  # the next call finds the end again
            count += got
        return count

    def send(self, data: Any) -> int:
        try:
            return self._ssl.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[memoryview | bytes]) -> int:
        first = memoryview(parts[0])
        if len(parts) == 1 or first.nbytes >= JOIN_BYTES:
            return self.send(first)
        # OpenSSL wants what it could not send once more, from the first byte on: a prefix of this.
        joined = bytearray()
        for part in parts:
            joined += memoryview(part)[: JOIN_BYTES - len(joined)]
            if len(joined) == JOIN_BYTES:
                break
        return self.send(joined)

    def shutdown(self, how: int) -> None:
        """End the stream in TCP: a frame that was cut off says enough."""
        socket.socket.shutdown(self._ssl, how)


class _Reception:
    """The handshakes that one listener is in."""

    def __init__(self, context: ssl.SSLContext, on_accept: OnAccept) -> None:
        self._on_accept = on_accept
        self._context = context
        self.pending: PendingHandshakes[_PendingConnection] = PendingHandshakes(
            "a listener", _MOST_HANDSHAKES
        )

    def wrap(self, sock: socket.socket) -> None:
        set_options(sock)
        host, port = sock.getpeername()[:2]
        secured = _Secured(self._context, sock, server_side=True)
        incoming = _PendingConnection(secured, f"{SCHEME}://{host}:{port}", self)
        self.pending.admit(incoming, incoming.name)
        incoming.start()

    def arrived(self, incoming: _PendingConnection) -> None:
        self.pending.proven(incoming)
        hand_over(TlsConnection(incoming.secured, incoming.name), self._on_accept, incoming.name)

    def refused(self, incoming: _PendingConnection, error: BaseException) -> None:
        self.pending.rejected(incoming, error)

    def close(self) -> None:
        self.pending.close(_PendingConnection.cancel)

    def close_in_child(self) -> None:
        for incoming in self.pending:
            os.close(incoming.secured.detach())


class _PendingConnection:
    """A connection in its handshake."""

    def __init__(self, secured: _Secured, name: str, reception: _Reception) -> None:
        self.secured = secured
        self.name = name
        self._reception = reception
        self._task: asyncio.Task[None]

    def start(self) -> None:
        """Begin the handshake. The connection is admitted before: an eager task may end in this call."""
        self._task = asyncio.get_running_loop().create_task(self._greet())

    async def _greet(self) -> None:
        try:
            await self.secured.handshake()
        except OSError as error:
            self.secured.close()
            why = DistNetworkError(f"{self.name} failed at TLS: {_reason(error)}")
            self._reception.refused(self, why)
        except BaseException:
            self.secured.close()
            raise
        else:
            self._reception.arrived(self)

    def abort(self, error: BaseException) -> None:
        self._reception.refused(self, error)
        self.cancel()

    def cancel(self) -> None:
        self._task.cancel()
        # A task that is cancelled before its first step never runs its own close.
        self._task.add_done_callback(lambda _: self.secured.close())


def _close_half_made(error: BaseException) -> None:
    """Close the socket that `wrap_socket` has made and leaves open where the stream has ended.

    It has taken the descriptor, and nothing but the frame that ``error`` holds refers to it.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        made = frame.f_locals.get("self")
        if isinstance(made, ssl.SSLSocket):
            made.close()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_refusal(error)
    return error.strerror or str(error)
