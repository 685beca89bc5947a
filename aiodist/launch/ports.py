"""Reserve a port between the launcher's choice and the moment rank 0 listens on it.

Probing for a free port and closing the probe leaves a gap: a second launch may pick the same
number. Here the probe stays open. On Linux two sockets may be bound to one port if both set
SO_REUSEADDR and neither is listening yet. The reservation never listens, so rank 0's store can bind
the same port and listen. Meanwhile the kernel gives the port to no process that asks for "any free
port", and to no outgoing connection.
"""

from __future__ import annotations

import errno
import socket
import sys

from aiodist.errors import DistNetworkError, InvalidUsageError


class PortReservation:
    """Holds ``port`` (on every local address) until closed. A context manager."""

    def __init__(self, port: int, held: socket.socket | None) -> None:
        """Hold a port; `reserve_port` makes it.

        Args:
            port: The port.
            held: The socket that is bound to it; None where it is not held.
        """
        self.port = port
        self._held = held

    def close(self) -> None:
        """Give the port back. Idempotent; a server that listens on it by now is not disturbed."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def keep_on_exec(self) -> int:
        """Let the program that this process executes hold the port too; return its number."""
        if self._held is not None:
            self._held.set_inheritable(True)
            self._held.detach()
            self._held = None
        return self.port

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def reserve_port(port: int = 0) -> PortReservation:
    """Reserve a TCP port on this host.

    The server that is to use it must set SO_REUSEADDR before it binds, as torch's TCPStore,
    asyncio and uvloop do. Outside Linux the kernels disagree about the second bind, so there the
    port is only checked and the reservation is empty.

    Args:
        port: The port; 0 lets the system choose a free one.

    Returns:
        The reservation, a context manager.

    Raises:
        InvalidUsageError: The number is no port.
        DistNetworkError: A process already listens on it, or this user may not use it.
    """
    if not 0 <= port <= 65535:
        raise InvalidUsageError(f"a port is a number from 1 to 65535, not {port}")
    try:
        held = _bind(port)
    except OSError as error:
        raise DistNetworkError(_explain(port, error)) from error
    chosen: int = held.getsockname()[1]
    if sys.platform != "linux":
        held.close()
        return PortReservation(chosen, None)
    return PortReservation(chosen, held)


def _bind(port: int) -> socket.socket:
    """Return a socket bound to ``port`` on every address, of both families where the host has IPv6.

    It accepts no connection, since it never listens: only the number is taken.
    """
    if socket.has_ipv6:
        try:
            return _bind_family(socket.AF_INET6, "::", port)
        except OSError as error:
            # A kernel without IPv6 says so. A filter of system calls may refuse its sockets in other ways.
            if error.errno == errno.EADDRINUSE:
                raise
    return _bind_family(socket.AF_INET, "", port)


def _bind_family(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((host, port))
    except BaseException:
        held.close()
        raise
    return held


def _explain(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is already in use on this host: choose another --master_port, "
            "or leave it out on one node and a free one is reserved"
        )
    if port and error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be used by this user: choose a --master_port above 1023"
    what = f"port {port} cannot" if port else "no port can"
    return f"{what} be reserved: {error.strerror or error}; see what this process may do"
