"""Work on large memory a piece at a time, so that the event loop serves others in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import replace
from typing import Any

from aiodist.backends.polling import until
from aiodist.collectives.channel import Channel
from aiodist.completion import T
from aiodist.copying import copy
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.tensors import Buffer

STEP = 2 << 20
"""Bytes of one piece: under a millisecond for what runs at memory speed."""

PART = 8 << 20
"""Bytes of one part of a tensor that goes through host memory: a multiple of every element's size,
long enough that a part's collective runs at full speed."""


async def gradually(
    group: GroupEngine, change: Callable[[memoryview], None], data: memoryview, itemsize: int
) -> None:
    """``change`` all of ``data``, whole elements at a time."""
    step = max(STEP // itemsize, 1) * itemsize
    for start in range(0, len(data), step):
        if start:
            await group.next_turn()
        change(data[start : start + step])


async def run_gradually(group: GroupEngine, steps: Generator[None, None, T]) -> T:
    """Take all ``steps`` and return what they make."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            made: T = stop.value
            return made
        await group.next_turn()


async def load_gradually(group: GroupEngine, *buffers: Buffer) -> None:
    """Fill the staged copies of buffers that were opened with ``load=False``."""
    copies = [b.staging.load(0, b.count) for b in buffers if b.staging is not None]
    for buffer in buffers:
        if buffer.is_staged and buffer.staging is None:
            for _ in buffer.load_parts(STEP):
                await group.next_turn()
    for is_over in copies:
        await until(group, is_over)


async def copy_gradually(group: GroupEngine, target: memoryview, source: memoryview) -> None:
    """``target[:] = source``."""
    for start in range(0, len(source), STEP):
        if start:
            await group.next_turn()
        piece = slice(start, start + STEP)
        copy(target[piece], source[piece])


async def write_back_gradually(group: GroupEngine, *buffers: Buffer) -> None:
    """`Buffer.write_back`. Cancelled half way, it leaves the rest of the owners as it was."""
    copies = []
    for staging, count in [(b.staging, b.count) for b in buffers if b.staging is not None]:
        copies += [staging.store(0, count), staging.settle()]
    for buffer in buffers:
        if buffer.is_staged and buffer.staging is None:
            for _ in buffer.write_back_parts(STEP):
                await group.next_turn()
    for is_over in copies:
        await until(group, is_over)


def in_parts(
    group: GroupEngine,
    fingerprint: Fingerprint,
    buffer: Buffer,
    body: Callable[[Channel], Coroutine[Any, Any, None]],
    timeout: float | None,
    shares: bool,
) -> Work[None]:
    """Start a collective whose ``body`` takes ``buffer`` `through_host`; see `GroupEngine.collective`.

    Ranks with CPU tensors, which run one algorithm on the whole buffer, are refused at any size.
    """
    # Shared memory has room for one run of an algorithm, and each part is one run. Several parts need
    # more: a rank that has published a part does not leave it before all have read it.
    shares = shares and buffer.count <= _part_of(buffer)
    return group.collective(replace(fingerprint, elsewhere=True), body, timeout, shares=shares)


async def through_host(
    group: GroupEngine,
    buffer: Buffer,
    use: Callable[[memoryview], Awaitable[None]],
    *,
    load: bool,
    store: bool,
) -> None:
    """``await use(part)`` for each part of a buffer with staging, in turn.

    While a part is in use the next one is on its way from the device and the last one on its way
    back. All ranks cut alike. ``load``, ``store``: whether ``use`` needs the owner's values, and
    whether it changes them.
    """
    staging = buffer.staging
    assert staging is not None
    step = _part_of(buffer)
    bounds = [(start, min(start + step, buffer.count)) for start in range(0, buffer.count, step)]
    bounds = bounds or [(0, 0)]
    coming = staging.load(*bounds[0]) if load else _at_once
    going = []
    for number, (start, stop) in enumerate(bounds):
        here = coming
        if load and number + 1 < len(bounds):
            coming = staging.load(*bounds[number + 1])
        await until(group, here)
        await use(buffer.slice(start, stop - start))
        if store:
            going.append(staging.store(start, stop))
    if store:
        going.append(staging.settle())
    for is_over in going:
        await until(group, is_over)


def _part_of(buffer: Buffer) -> int:
    """Elements."""
    return max(PART // buffer.dtype.itemsize, 1)


def _at_once() -> bool:
    return True
