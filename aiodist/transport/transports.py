"""The transports of a rank, by the scheme of their addresses. A new transport is registered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiodist.credentials import Certificates
from aiodist.errors import InvalidUsageError
from aiodist.transport.base_transport import Transport
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.tls import TlsTransport
from aiodist.transport.unix import UnixTransport


class Transports:
    """The transports of one rank, made on first use. ``factories``: scheme to factory."""

    def __init__(self, factories: Mapping[str, Callable[[], Transport]]) -> None:
        self._factories = dict(factories)
        self._made: dict[str, Transport] = {}

    @classmethod
    def default(
        cls,
        host: str,
        *,
        source_hosts: Sequence[str] = (),
        hub: InprocHub | None = None,
        certificates: Certificates | None = None,
    ) -> Transports:
        """Return ``tcp`` on ``host`` and ``unix``; with certificates also ``tls``, with a hub also
        ``inproc``.
        """
        factories: dict[str, Callable[[], Transport]] = {
            "tcp": lambda: TcpTransport(host, source_hosts=source_hosts),
            "unix": UnixTransport,
        }
        if certificates is not None:
            factories["tls"] = lambda: TlsTransport(host, certificates, source_hosts=source_hosts)
        if hub is not None:
            factories["inproc"] = lambda: InprocTransport(hub)
        return cls(factories)

    def add(self, scheme: str, factory: Callable[[], Transport]) -> None:
        """Register a transport under one more scheme."""
        self._factories[scheme] = factory

    @property
    def schemes(self) -> tuple[str, ...]:
        return tuple(self._factories)

    def get(self, scheme: str) -> Transport:
        """Return the transport for ``scheme``, the same one each time. Raises InvalidUsageError."""
        if scheme not in self._made:
            if scheme not in self._factories:
                known = ", ".join(self._factories)
                raise InvalidUsageError(f"unknown transport {scheme!r}; the known ones: {known}")
            self._made[scheme] = self._factories[scheme]()
        return self._made[scheme]
