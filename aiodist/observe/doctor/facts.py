"""Collect facts of this host: plain data, which travels to the other hosts."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import platform
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from aiodist.credentials import CERT_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from aiodist.errors import DistError, ProtocolError
from aiodist.links.host import own_cores
from aiodist.links.interfaces import (
    choose_hosts,
    default_address,
    family_of,
    is_loopback,
    list_interfaces,
)
from aiodist.procfs import host_name
from aiodist.rendezvous.meeting import host_identity

PACKAGES = ("aiodist", "torch", "numpy", "msgpack", "uvloop")
_SHM = "/dev/shm"  # looked at; nothing is put there
_TRANSPORT_VARIABLE = "AIODIST_TRANSPORT"
_NET = Path("/sys/class/net")
_CREDENTIALS = (SECRET_VARIABLE, SECRET_FILE_VARIABLE, CERT_VARIABLE)


@dataclass(frozen=True)
class Link:
    """A network interface's address. ``mtu`` in bytes, 0 where not known. ``state``: "up", ..."""

    name: str
    address: str
    mtu: int
    state: str


@dataclass(frozen=True)
class Facts:
    """A host as ranks on it will find it.

    ``identity``: equal for processes that reach each other by loopback. ``resolved``: addresses of
    the host's own name, found in ``resolve_seconds``. ``address``: by which other hosts most likely
    reach it. ``chosen``: the addresses ranks would use; ``chosen_error``: why ranks would have no
    address. ``unix_error``: "" if ranks have the Unix sockets that they use. ``shm_bytes``: size of
    /dev/shm, -1 without; ``memfd_error``: "" if anonymous shared memory works. ``open_files``: soft
    and hard limit, -1 for unlimited. ``versions``: "" for what is absent. ``is_closed``: whether
    ranks have a secret or certificates, which strangers lack.
    """

    host: str
    identity: str
    system: str
    cores: int
    resolved: tuple[str, ...]
    resolve_seconds: float
    links: tuple[Link, ...]
    address: str
    chosen: tuple[str, ...]
    chosen_error: str
    listen_error: str
    unix_error: str
    shm_bytes: int
    memfd_error: str
    open_files: tuple[int, int]
    python: str
    versions: Mapping[str, str]
    is_closed: bool

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def decode_facts(data: bytes) -> Facts:
    """Decode facts. Raises ProtocolError."""
    try:
        told = json.loads(data)
        told["links"] = tuple(Link(**link) for link in told["links"])
        for name in ("resolved", "chosen", "open_files"):
            told[name] = tuple(told[name])
        return Facts(**told)
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"a host described itself in another way: {error!r}") from None


def look(environ: Mapping[str, str], met: Sequence[str] = ()) -> Facts:
    """Collect the facts of this host. ``met``: its own addresses, if it has met the other hosts."""
    resolved, seconds = _own_name()
    chosen, chosen_error = (tuple(met), "") if met else _chosen(environ)
    return Facts(
        host=host_name(),
        identity=host_identity(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(own_cores()),
        resolved=resolved,
        resolve_seconds=seconds,
        links=_links(),
        address=next((a for a in chosen if not is_loopback(a)), None) or default_address(),
        chosen=chosen,
        chosen_error=chosen_error,
        listen_error=_listening(chosen),
        unix_error=_unix_error(environ),
        shm_bytes=_shm_bytes(),
        memfd_error=_memfd_error(),
        open_files=_open_files(),
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
        is_closed=any(map(environ.get, _CREDENTIALS)),
    )


def _own_name() -> tuple[tuple[str, ...], float]:
    began = monotonic()
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # UnicodeError: the resolver's codec refuses a label of more than 63 characters.
        found = []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(addresses), monotonic() - began


def _chosen(environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    try:
        return choose_hosts(None, environ) or (default_address(),), ""
    except DistError as error:
        return (), str(error)


def _links() -> tuple[Link, ...]:
    return tuple(
        Link(each.name, each.address, _mtu(each.name), _text(_NET / each.name / "operstate"))
        for each in list_interfaces()
    )


def _mtu(name: str) -> int:
    text = _text(_NET / name / "mtu")
    return int(text) if text.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _listening(addresses: Sequence[str]) -> str:
    """Return why ranks cannot listen at their own address or reach themselves there, or ""."""
    for address in addresses:
        try:
            family = family_of(address)
            place = socket.getaddrinfo(address, 0, family)[0][4]  # with the number of its interface
            with socket.create_server(place, family=family) as own, socket.socket(family) as caller:
                caller.settimeout(5)
                caller.connect(own.getsockname())
        except OSError as error:
            return f"{address}: {error}"
    return ""


def _unix_error(environ: Mapping[str, str]) -> str:
    """Return why ranks cannot use the Unix sockets that ``environ`` asks for, or "".

    Linux only: elsewhere such a socket lies on disk.
    """
    if sys.platform != "linux" or "unix" not in (environ.get(_TRANSPORT_VARIABLE) or "unix"):
        return ""
    try:
        with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as caller:
            own.bind("")  # the kernel chooses an abstract name
            own.listen()
            caller.connect(own.getsockname())
    except OSError as error:
        return str(error)
    return ""


def _shm_bytes() -> int:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return -1
    return status.f_blocks * status.f_frsize


def _memfd_error() -> str:
    if sys.platform != "linux":
        return f"{sys.platform} has no memfd_create"
    try:
        fd = os.memfd_create("aiodist-doctor")
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            with mmap.mmap(fd, mmap.PAGESIZE) as memory:
                memory[0] = 1
        finally:
            os.close(fd)
    except OSError as error:
        return str(error)
    return ""


def _open_files() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    return (-1 if soft == infinite else soft, -1 if hard == infinite else hard)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
