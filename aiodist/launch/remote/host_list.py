"""The hosts of a job, as ``-H host1:4,host2:4`` and a hostfile name them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiodist.errors import InvalidUsageError

_LINE = re.compile(r"(?P<name>\S+?)(?::(?P<colon>\d+)|\s+(?:slots|np)\s*=\s*(?P<slots>\d+))?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HostSlots(NamedTuple):
    """A host, and how many ranks it has. ``name`` is what ssh is given, such as ``user@host``."""

    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """Whether the name is this machine's own, so that no ssh is needed."""
        return self.name in _LOOPBACK or self.name == socket.gethostname()


def parse_hosts(text: str) -> list[HostSlots]:
    """Return the hosts of ``-H``: names with their slots, separated by commas.

    A host without a number has one slot, and the slots of a host that is named twice add up.
    Raises InvalidUsageError for anything else.
    """
    return _merged(_parse(word.strip(), "-H") for word in text.split(",") if word.strip())


def read_hostfile(path: str) -> list[HostSlots]:
    """Return the hosts of a file: a line ``host``, ``host:4`` or ``host slots=4`` for each.

    ``#`` begins a comment. The rules are those of `parse_hosts`. Raises InvalidUsageError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidUsageError(f"the hostfile {path!r} cannot be read: {why}") from None
    return _merged(_parse(line, path) for line in lines if line)


def take_slots(hosts: Sequence[HostSlots], count: int | None) -> tuple[HostSlots, ...]:
    """Return the hosts that ``count`` ranks take, the first hosts first; None takes all slots.

    Raises InvalidUsageError where the hosts have fewer slots.
    """
    total = sum(host.slots for host in hosts)
    if count is not None and count > total:
        raise InvalidUsageError(
            f"{count} ranks need {count} slots, and the hosts have {total}: raise the numbers "
            "behind the names, as in -H host1:4,host2:4"
        )
    left, taken = total if count is None else count, []
    for host in hosts:
        slots = min(host.slots, left)
        if slots:
            taken.append(HostSlots(host.name, slots))
        left -= slots
    return tuple(taken)


def _parse(text: str, origin: str) -> HostSlots:
    found = _LINE.fullmatch(text)
    if found is None or not _is_host_name(found["name"]):
        raise InvalidUsageError(
            f"{origin}: {text!r} is no host with its slots, such as 'host1:4' or, in a file, "
            "'host1 slots=4'; an IPv6 address goes in brackets"
        )
    slots = int(found["colon"] or found["slots"] or 1)
    if slots < 1:
        raise InvalidUsageError(f"{origin}: {text!r}: a host has at least 1 slot")
    user, at, host = found["name"].rpartition("@")
    return HostSlots(f"{user}{at}{host.strip('[]')}", slots)


def _is_host_name(text: str) -> bool:
    """Return whether ``text`` can be handed to ssh: it begins with no dash, as an option does."""
    host = text.rpartition("@")[2]
    bare = host.startswith("[") and host.endswith("]")
    return not text.startswith("-") and bool(host) and (bare or ":" not in host)


def _merged(hosts: Iterable[HostSlots]) -> list[HostSlots]:
    slots: dict[str, int] = {}
    here = None  # the first of the names of this machine stands for all of them
    for host in hosts:
        name = host.name
        if host.is_here:
            here = name = here or name
        slots[name] = slots.get(name, 0) + host.slots
    if not slots:
        raise InvalidUsageError("no host is named: write -H host1:4,host2:4, or a line for each")
    return [HostSlots(name, count) for name, count in slots.items()]
