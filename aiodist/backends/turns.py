"""Work on large memory a piece at a time, so that the event loop serves others in between."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.groups.process_group import ProcessGroup
from aiodist.tensors import Buffer

STEP = 2 << 20
"""Bytes of one piece: under a millisecond for what runs at memory speed."""


async def in_turns(
    group: ProcessGroup, change: Callable[[memoryview], None], data: memoryview, itemsize: int
) -> None:
    """``change`` all of ``data``, whole elements at a time."""
    step = max(STEP // itemsize, 1) * itemsize
    for start in range(0, len(data), step):
        if start:
            await group.next_turn()
        change(data[start : start + step])


async def load_in_turns(group: ProcessGroup, *buffers: Buffer) -> None:
    """Fill the staged copies of buffers that were opened with ``load=False``."""
    for buffer in buffers:
        if buffer.is_staged:
            for _ in buffer.load_parts(STEP):
                await group.next_turn()


async def copy_in_turns(group: ProcessGroup, target: memoryview, source: memoryview) -> None:
    """``target[:] = source``."""
    for start in range(0, len(source), STEP):
        if start:
            await group.next_turn()
        target[start : start + STEP] = source[start : start + STEP]


async def write_back_in_turns(group: ProcessGroup, *buffers: Buffer) -> None:
    """`Buffer.write_back`. Cancelled half way, it leaves the rest of the owners as it was."""
    for buffer in buffers:
        if buffer.is_staged:
            for _ in buffer.write_back_parts(STEP):
                await group.next_turn()
