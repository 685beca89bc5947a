"""Choose the network interface of a rank: by the route to the master, or by the user's setting.

Addresses come from the C library's own tables and from ``/proc``: no packet is sent and no name is
looked up. Interfaces are listed on Linux only. On other systems the route to the master works too,
and AIODIST_SOCKET_IFNAME raises an error that says so.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.errors import EXHAUSTED, DistNetworkError, InvalidUsageError, remedy_for

IFNAME_VARIABLES = ("AIODIST_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The first variable with a value decides."""

_SIOCGIFADDR = 0x8915
_LINK_LOCAL_SCOPE = 0x20
_IF_INET6 = Path("/proc/net/if_inet6")

# Documentation addresses (RFC 5737, RFC 3849), far from everywhere: the route is the default one.
_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
_ANY_PORT = 9


@dataclass(frozen=True)
class Interface:
    """A network interface's name and one of its addresses."""

    name: str
    address: str
    family: socket.AddressFamily


def is_loopback(address: str) -> bool:
    """Return whether the numeric ``address`` (IPv6 may carry a %scope) never leaves the host."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def family_of(address: str) -> socket.AddressFamily:
    """Return socket.AF_INET or AF_INET6 for a numeric ``address``."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def list_interfaces() -> list[Interface]:
    """Return every interface with its IPv4 and IPv6 addresses, in the kernel's order.

    Link-local addresses are left out: without a scope they mean nothing on another host.
    """
    if sys.platform != "linux":
        return []
    names = [name for _, name in socket.if_nameindex()]
    v6 = _ipv6_addresses(_IF_INET6.read_text(encoding="utf-8") if _IF_INET6.exists() else "")
    found: list[Interface] = []
    for name in names:
        v4 = _ipv4_address(name)
        if v4 is not None:
            found.append(Interface(name, v4, socket.AF_INET))
        found += [Interface(name, address, socket.AF_INET6) for address in v6.get(name, ())]
    return found


def _ipv4_address(name: str) -> str | None:
    if sys.platform != "linux":  # keeps type checkers from looking for fcntl elsewhere
        return None
    import fcntl

    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None  # the interface has no IPv4 address
    return socket.inet_ntoa(answer[20:24])


def _ipv6_addresses(table: str) -> dict[str, list[str]]:
    """Return addresses by interface from the text of /proc/net/if_inet6."""
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        digits, _, _, scope, _, name = line.split()
        if int(scope, 16) != _LINK_LOCAL_SCOPE:
            address = str(ipaddress.IPv6Address(int(digits, 16)))
            found.setdefault(name, []).append(address)
    return found


def address_of(sockaddr: Sequence[Any]) -> str:
    """Return the numeric address in ``sockaddr``, with the interface behind a link-local one."""
    scope = sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{sockaddr[0]}%{socket.if_indextoname(scope)}" if scope else str(sockaddr[0])


def datagram_socket(address: str) -> socket.socket | None:
    """Return a new socket of the family of the numeric ``address``, or None if the system has none.

    A name may have an IPv6 address on a host that was started without IPv6: /etc/hosts says so. A filter
    of system calls may refuse IPv6. Raises DistNetworkError if the system refuses a socket otherwise.
    """
    family = family_of(address)
    try:
        return socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        refuses_ipv6 = family == socket.AF_INET6 and error.errno not in EXHAUSTED
        if refuses_ipv6 or error.errno == errno.EAFNOSUPPORT:
            return None
        raise DistNetworkError(
            f"the system refuses a socket to find the route to {address}: {error.strerror}; "
            + remedy_for(error, "see what this process may do")
        ) from error


def route_to(address: str) -> str | None:
    """Return this host's own address on the route to the numeric ``address``, or None without a route.

    Connecting a datagram socket asks the routing table and sends nothing.
    """
    try:
        return _routed_to(address)
    except OSError:
        return None


def without_route(address: str) -> str:
    """Return text for the numeric ``address``, which `route_to` has no route to: with the reason."""
    try:
        _routed_to(address)
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return address  # there is a route by now


def _routed_to(address: str) -> str:
    probe = datagram_socket(address)
    if probe is None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    with probe:
        host, _, scope = address.partition("%")
        peer = (host, _ANY_PORT, 0, socket.if_nametoindex(scope)) if scope else None
        probe.connect(peer or (host, _ANY_PORT))
        return address_of(probe.getsockname())


def default_address(interfaces: Sequence[Interface] | None = None) -> str:
    """Return the address by which other hosts most likely reach this one; loopback if there is no other.

    The default route's address comes first, IPv4 before IPv6, then the first that is not loopback.
    """
    for far in _FAR_AWAY:
        address = route_to(far)
        if address is not None and not is_loopback(address):
            return address
    known = list_interfaces() if interfaces is None else interfaces
    outward = [i.address for i in known if not is_loopback(i.address)]
    return outward[0] if outward else "127.0.0.1"


def choose_hosts(
    master: str | None,
    environ: Mapping[str, str],
    *,
    interfaces: Callable[[], Sequence[Interface]] = list_interfaces,
    route: Callable[[str], str | None] = route_to,
) -> tuple[str, ...] | None:
    """Return this rank's own addresses, in the order in which streams are dealt to them.

    ``master``: the numeric address of the master, None if ranks meet without one. Without
    AIODIST_SOCKET_IFNAME or GLOO_SOCKET_IFNAME the result is the one address on the route to the
    master, or None if there is no master.

    Raises InvalidUsageError (no interface matches, malformed) or DistNetworkError (no route).
    """
    variable = next((name for name in IFNAME_VARIABLES if environ.get(name, "").strip()), None)
    if variable is not None:
        return _choose_by_name(variable, environ[variable].strip(), master, interfaces(), route)
    if master is None:
        return None
    own = route(master)
    if own is None:
        raise DistNetworkError(
            f"this host has no route to the master's address {without_route(master)}; check "
            f"MASTER_ADDR, or name the interface to use in {IFNAME_VARIABLES[0]}"
        )
    # A route to this host itself may be loopback; the other hosts know the master's address.
    return (master,) if is_loopback(own) and not is_loopback(master) else (own,)


def _choose_by_name(
    variable: str,
    spec: str,
    master: str | None,
    interfaces: Sequence[Interface],
    route: Callable[[str], str | None],
) -> tuple[str, ...]:
    if not interfaces:
        raise InvalidUsageError(
            f"{variable}={spec!r} names interfaces, and on this platform ({sys.platform}) they "
            "cannot be listed: unset it, the interface is then the one that leads to the master"
        )
    family = None if master is None else family_of(master)
    usable = _one_address_each(interfaces, family)
    excluded = spec.startswith("^")
    names = [part.strip() for part in spec.removeprefix("^").split(",") if part.strip()]
    if excluded:
        left = [i for i in usable if not any(_matches(i.name, name) for name in names)]
        own = None if master is None else route(master)
        on_route = [i for i in left if i.address == own]
        outward = [i for i in left if not is_loopback(i.address)]
        chosen = (on_route or outward or left)[:1]
    else:
        chosen = _in_order(usable, names)
    if not chosen:
        kind = {None: "an", socket.AF_INET: "an IPv4", socket.AF_INET6: "an IPv6"}[family]
        raise InvalidUsageError(
            f"{variable}={spec!r} matches no interface with {kind} address. This host has "
            f"{_describe(interfaces)}"
        )
    return tuple(i.address for i in chosen)


def _in_order(usable: Sequence[Interface], names: Iterable[str]) -> list[Interface]:
    """Return the interfaces that ``names`` match, each once.

    A name without a match is skipped: one value often serves hosts whose interfaces differ.
    """
    chosen: list[Interface] = []
    for name in names:
        exact = [i for i in usable if i.name == name.removeprefix("=")]
        matching = exact or [i for i in usable if _matches(i.name, name)]
        chosen += [i for i in matching if i not in chosen]
    return chosen


def _matches(interface: str, name: str) -> bool:
    """Return whether ``name`` matches: ``=eth0`` means only eth0; ``eth`` means eth0, eth1 and so on."""
    return interface == name[1:] if name.startswith("=") else interface.startswith(name)


def _one_address_each(
    interfaces: Sequence[Interface], family: socket.AddressFamily | None
) -> list[Interface]:
    """Return one address of each interface, of ``family``; IPv4 is preferred if the family is open."""
    best: dict[str, Interface] = {}
    for interface in interfaces:
        if family in (None, interface.family):
            held = best.get(interface.name)
            if held is None or (held.family, interface.family) == (socket.AF_INET6, socket.AF_INET):
                best[interface.name] = interface
    return list(best.values())


def _describe(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{i.name} ({i.address})" for i in interfaces)
