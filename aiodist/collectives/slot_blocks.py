"""A slot with a block for each rank: the n lengths, then the blocks where all of them fit.

The first block begins where copying is as fast as at the begin of the slot (`aiodist.alignment`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from aiodist.alignment import up
from aiodist.collectives.partition import offsets_of
from aiodist.copying import copy


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where in a slot each of the blocks begins; one number more for where the last one ends."""
    return offsets_of([up(_table(len(lengths)).size), *lengths])[1:]


def write_blocks(
    slot: memoryview,
    lengths: Sequence[int],
    blocks: Sequence[memoryview],
    starts: Sequence[int],
    rank: int,
) -> None:
    """Write ``lengths``, and ``blocks`` where they fit.

    The block of ``rank``, the writer itself, is left out: no other rank reads it.
    """
    _table(len(lengths)).pack_into(slot, 0, *lengths)
    for other, block in enumerate(blocks):
        if other != rank:
            start = starts[other]
            copy(slot[start : start + len(block)], block)


def lengths_of(slot: memoryview, size: int) -> tuple[int, ...]:
    """Return the lengths in another rank's ``slot``, one for each of ``size`` ranks."""
    return _table(size).unpack_from(slot)


@lru_cache(maxsize=16)
def _table(size: int) -> struct.Struct:
    return struct.Struct(f"<{size}Q")
