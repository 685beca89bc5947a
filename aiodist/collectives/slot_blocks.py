"""A slot with a block for each rank: the n lengths, then the blocks where all of them fit.

The first block begins where copying is as fast as at the begin of the slot (`aiodist.alignment`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from aiodist.alignment import up
from aiodist.collectives.partition import offsets_of
from aiodist.copying import copy


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where in a slot each of the blocks begins; one number more for where the last one ends."""
    return offsets_of([up(_table(len(lengths)).size), *lengths])[1:]


def write_blocks(slot: memoryview, blocks: Sequence[memoryview], starts: Sequence[int]) -> None:
    """Write the lengths that ``starts`` says, and ``blocks`` where they fit."""
    lengths = [end - start for start, end in pairwise(starts)]
    _table(len(lengths)).pack_into(slot, 0, *lengths)
    for start, block in zip(starts, blocks, strict=False):
        copy(slot[start : start + len(block)], block)


def read_blocks(
    slot: memoryview, rank: int, size: int, slot_bytes: int
) -> tuple[tuple[int, ...], memoryview | None]:
    """Return what another rank has in its ``slot``, which holds up to ``slot_bytes``.

    The lengths, and the block of ``rank``, None where the blocks did not fit into the slot.
    """
    lengths = lengths_of(slot, size)
    starts = starts_of(lengths)
    if starts[-1] > slot_bytes:
        return lengths, None
    return lengths, slot[starts[rank] : starts[rank + 1]]


def lengths_of(slot: memoryview, size: int) -> tuple[int, ...]:
    """The lengths alone, one for each of ``size`` ranks."""
    return _table(size).unpack_from(slot)


@lru_cache(maxsize=16)
def _table(size: int) -> struct.Struct:
    return struct.Struct(f"<{size}Q")
