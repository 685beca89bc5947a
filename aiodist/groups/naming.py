"""Numbers of groups and in groups that all ranks compute alike, and the names of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from aiodist.wire.frames import STREAM, TENSOR

if TYPE_CHECKING:
    from aiodist.groups.group_facts import GroupFacts


def digest(text: str, nbytes: int = 8) -> int:
    """Return a number of ``nbytes`` bytes that is equal on all ranks with equal texts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=nbytes).digest(), "little")


def group_id(name: str, ranks: Sequence[int]) -> int:
    """Return 64 bits that name a group on the wire, equal on all ranks with equal arguments."""
    return digest(f"{name}\0{','.join(map(str, ranks))}")


def announcement_group_id(group: GroupFacts) -> int:
    """Return the id under which a group's ranks announce messages that another library carries."""
    return group_id(f"{group.group_name}\0transfers", group.ranks)


def successor_name(name: str) -> str:
    """Return ``g~1`` after ``g``, ``g~2`` after ``g~1``."""
    stem, mark, number = name.rpartition("~")
    if mark and number.isdecimal():
        return f"{stem}~{int(number) + 1}"
    return f"{name}~1"


def call_of(what: str, kind: int) -> str:
    """Return the name of the call behind a message of ``kind``; ``what`` is "send" or "recv"."""
    return _CALLS[what][kind]


def plural_of(kind: int) -> str:
    """Return what error messages call several messages of ``kind``."""
    return _PLURALS[kind] if 0 <= kind < len(_PLURALS) else "messages"


_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        what: tuple(
            what + {TENSOR: "", STREAM: "_stream"}.get(kind, "_object") for kind in range(5)
        )
        for what in ("send", "recv")
    }
)
"""By what it is and by kind."""

_PLURALS = (
    "messages of collectives",
    "tensors",
    "objects",
    "parts of objects",
    "messages of streams",
)
"""By kind."""


def neighbours(number: int, size: int, near: int = 1) -> list[int]:
    """Return those at distances 1, 2, 4 and so on from ``number`` on a ring of ``size``, both ways.

    Also those at every distance up to ``near``.
    """
    distances = [*range(1, near + 1), *(1 << power for power in range(size.bit_length()))]
    found = {(number + step) % size for each in distances for step in (each, -each)}
    return sorted(found - {number})
