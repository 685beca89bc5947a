"""Work on large memory a piece at a time, so that the event loop serves others in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

from aiodist.backends.polling import until
from aiodist.completion import T
from aiodist.copying import copy
from aiodist.groups.group_engine import GroupEngine
from aiodist.tensors import Buffer

STEP = 2 << 20
"""Bytes of one piece: under a millisecond for what runs at memory speed."""


async def gradually(
    group: GroupEngine, change: Callable[[memoryview], None], data: memoryview, itemsize: int
) -> None:
    """Call ``change`` on all of ``data``, whole elements at a time."""
    step = max(STEP // itemsize, 1) * itemsize
    for start in range(0, len(data), step):
        if start:
            await group.next_turn()
        change(data[start : start + step])


async def run_gradually(
    next_turn: Callable[[], Awaitable[None]], steps: Generator[None, None, T]
) -> T:
    """Take all ``steps``, with ``next_turn`` of the loop after each, and return what they make."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            made: T = stop.value
            return made
        await next_turn()


async def load_gradually(group: GroupEngine, *buffers: Buffer) -> None:
    """Fill the staged copies of buffers that were opened with ``load=False``."""
    copies = [b.staging.load() for b in buffers if b.staging is not None]
    for buffer in buffers:
        if buffer.is_staged and buffer.staging is None:
            for _ in buffer.load_parts(STEP):
                await group.next_turn()
    for is_over in copies:
        await until(group, is_over)


async def copy_gradually(group: GroupEngine, target: memoryview, source: memoryview) -> None:
    """Copy ``source`` into ``target``."""
    for start in range(0, len(source), STEP):
        if start:
            await group.next_turn()
        piece = slice(start, start + STEP)
        copy(target[piece], source[piece])


async def write_back_gradually(group: GroupEngine, *buffers: Buffer) -> None:
    """Do as `Buffer.write_back`. Cancelled half way, it leaves the rest of the tensors unchanged."""
    copies = [b.staging.store() for b in buffers if b.staging is not None]
    for buffer in buffers:
        if buffer.is_staged and buffer.staging is None:
            for _ in buffer.write_back_parts(STEP):
                await group.next_turn()
    for is_over in copies:
        await until(group, is_over)
