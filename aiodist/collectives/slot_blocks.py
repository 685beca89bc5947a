"""A slot with a block for each rank: the n lengths, then the blocks where all of them fit.

The first block begins where copying is as fast as at the begin of the slot (`aiodist.alignment`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from aiodist.alignment import up
from aiodist.collectives.layout import offsets_of
from aiodist.collectives.shm_context import ShmContext
from aiodist.copying import copy


async def publish_blocks(shm: ShmContext, blocks: Sequence[memoryview]) -> bool:
    """Put up the lengths of ``blocks``, one for each rank; whether the blocks stand there as well."""
    starts = starts_of([len(block) for block in blocks])
    fits = starts[-1] <= shm.slot_bytes
    used = starts[-1] if fits else starts[0]
    own = await shm.slot(used)
    write_blocks(own, blocks if fits else (), starts)
    shm.publish(used)
    return fits


async def blocks_of(shm: ShmContext, rank: int) -> tuple[tuple[int, ...], memoryview | None]:
    """What ``rank`` has published: the lengths, and this rank's block, None where none stands there."""
    return read_blocks(await shm.slot_of(rank), shm.rank, shm.size, shm.slot_bytes)


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where in a slot each of the blocks begins; one number more for where the last one ends."""
    return offsets_of([up(_table(len(lengths)).size), *lengths])[1:]


def write_blocks(slot: memoryview, blocks: Sequence[memoryview], starts: Sequence[int]) -> None:
    """Write the lengths that ``starts`` says, and ``blocks`` where they fit."""
    lengths = [end - start for start, end in pairwise(starts)]
    # Not by `pack_into`, which writes zeros first: what is published again others may be reading.
    table = _table(len(lengths))
    slot[: table.size] = table.pack(*lengths)
    for start, block in zip(starts, blocks, strict=False):
        copy(slot[start : start + len(block)], block)


def read_blocks(
    slot: memoryview, rank: int, size: int, slot_bytes: int
) -> tuple[tuple[int, ...], memoryview | None]:
    """From another's ``slot``, which holds up to ``slot_bytes``: see `blocks_of`."""
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
