"""Ranks on hosts of their own: network namespaces on a switch, made and removed by the run."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

INTERFACE = "eth0"
_NETWORK = "10.112.0"
_NAMES = Path("/run/netns")
"""Where the system keeps the names of namespaces."""
_CONTROL = "net.ipv4.tcp_congestion_control"
_BURST = "256kb"
_QUEUE = "50ms"
"""Limits of a link with a rate: the longest wait of a packet; ``_BURST`` may leave at once."""


class NoNamespacesError(RuntimeError):
    """The system does not let this process make them; the message says why."""


@contextmanager
def namespaces(
    count: int, rate: str | None = None, congestion: str | None = None
) -> Iterator[list[str]]:
    """Yield the names of ``count`` namespaces, each with an address on `INTERFACE`, joined by a bridge.

    ``rate``: the rate at which each may send, as tc writes it ("1gbit"); None means unlimited.
    ``congestion``: the default TCP congestion control there; None means the system's.
    Raises NoNamespacesError. The namespaces are removed at the end, with all that is in them.
    """
    stem = f"aiodist-bench-{os.getpid()}-{secrets.token_hex(2)}"
    switch = f"{stem}-switch"
    names = [f"{stem}-{number}" for number in range(count)]
    with ExitStack() as made:
        for name in (switch, *names):
            # Registered first: a signal may end this process when ip has added the name.
            made.callback(_remove, name)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            port = f"port{number}"
            cable = ["type", "veth", "peer", "name", INTERFACE, "netns", name]
            _ip("-n", switch, "link", "add", port, *cable)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "address", "add", f"{_NETWORK}.{number + 1}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            if congestion is not None:
                _run(*inside(name, ["sysctl", "-qw", f"{_CONTROL}={congestion}"]))
            if rate is not None:
                bucket = ["root", "tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]
                _run(*inside(name, ["tc", "qdisc", "add", "dev", INTERFACE, *bucket]))
        yield names


def inside(name: str, command: list[str]) -> list[str]:
    """``command`` as it is run in namespace ``name``."""
    return ["ip", "netns", "exec", name, *command]


def _remove(name: str) -> None:
    """Remove a namespace if it was added, also when a signal interrupts the first attempt.

    A second signal does not: `exit_on_sigterm` ignores it.
    """
    try:
        _delete(name)
    except BaseException:
        _delete(name)
        raise


def _delete(name: str) -> None:
    if (_NAMES / name).exists():
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    try:
        # In a session of its own: a signal to this process and its children leaves it to its work.
        subprocess.run(words, check=True, capture_output=True, text=True, start_new_session=True)
    except FileNotFoundError:
        raise NoNamespacesError("there is no ip command here; it comes with iproute2") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()
        raise NoNamespacesError(
            f"network namespaces are not to be had here: {' '.join(words)} says {said!r}; "
            "making them takes the right to administer networks"
        ) from None
