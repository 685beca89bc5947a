"""What the members of a group know of a process that is to become one of them."""

from __future__ import annotations

from typing import NamedTuple


class Newcomer(NamedTuple):
    """A process that waits to be taken in. ``name``: random, its own."""

    rank: int
    rank_info: bytes
    name: bytes
