"""Faults of the matrix for ranks that share memory: strike at a flag, damage a published word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.groups import shm_collective
from aiodist.groups.fingerprint import Words
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.world import current_world
from aiodist.shm.message_ring import RingReader, RingWriter
from tests.faults.contents import of_rank, total

CHUNKED = 1_100_000
"""Elements of four bytes: some chunks for each rank, and what goes along a chain where ranks outnumber
cores."""


def world_communicator() -> ShmCommunicator:
    """The default group's. AssertionError where its ranks share no memory."""
    communicator = current_world().default_group().communicator
    assert communicator is not None, "the ranks share no memory"
    return communicator


def at_flag(number: int, act: Callable[[], None]) -> None:
    """Call ``act()`` after this process has written its ``number``-th flag from now on.

    The call comes before the wake-up of a sleeping reader. The flag that is the rank's progress
    counts once more after the wake-up.
    """
    advance, wake = ShmCommunicator.advance, ShmCommunicator.wake
    put, fill, take = RingWriter.put, RingWriter.fill, RingReader.take
    written = 0

    def count() -> None:
        nonlocal written
        written += 1
        if written == number:
            act()

    def counted_advance(communicator: ShmCommunicator, progress: int) -> None:
        before = communicator.progress
        advance(communicator, progress)
        if communicator.progress != before:
            count()

    def counted_wake(communicator: ShmCommunicator, word: int) -> None:
        count()
        wake(communicator, word)

    def counted_fill(ring: RingWriter, data: memoryview, piece: int) -> bool:
        is_more = fill(ring, data, piece)
        count()
        return is_more

    def counted_put(ring: RingWriter, *message: Any) -> bool:
        has_room = put(ring, *message)
        if has_room:
            count()
        return has_room

    def counted_take(ring: RingReader, *record: int) -> None:
        take(ring, *record)
        count()

    ShmCommunicator.advance = counted_advance  # type: ignore[method-assign]
    ShmCommunicator.wake = counted_wake  # type: ignore[method-assign]
    RingWriter.put = counted_put  # type: ignore[method-assign]
    RingWriter.fill = counted_fill  # type: ignore[method-assign]
    RingReader.take = counted_take  # type: ignore[method-assign]


def damage_next(bits: int) -> None:
    """Flip ``bits`` of the first byte of the fingerprint that this process publishes next."""
    announce = shm_collective.announce

    def damaged(mine: memoryview, tag: int, base: int, meta: Words, *rest: Any) -> None:
        shm_collective.announce = announce
        announce(mine, tag, base, (meta[0] ^ bits, meta[1]), *rest)

    shm_collective.announce = damaged


async def _receive_three(count: int, left: int) -> None:
    for tag in (2, 0, 1):  # so that some wait in the ring, and the last is taken ahead
        into = np.empty(count, int)
        await dist.recv(into, left, tag=tag)
        assert (into == of_rank(left + tag, count)).all()


async def all_kinds(rank: int, size: int) -> None:
    """A row of messages and collectives, small and in pieces. AssertionError where one goes wrong."""
    ranks = range(size)
    left, right = (rank - 1) % size, (rank + 1) % size
    for count in (1, CHUNKED // 500):
        works = [dist.isend(of_rank(rank + tag, count, int), right, tag=tag) for tag in range(3)]
        await asyncio.gather(_receive_three(count, left), *works)
    for count in (CHUNKED // 8, CHUNKED):
        into = np.empty(count, np.float32)
        sent = dist.isend(of_rank(rank, count, np.float32), right)
        await asyncio.gather(dist.recv(into, left), sent)
        assert (into == of_rank(left, count)).all()
    for count in (1, CHUNKED):
        mine = of_rank(rank, count, np.float32)
        data = mine.copy()
        await dist.all_reduce(data)
        assert (data == total(ranks, count)).all()
        for root in (0, size - 1):
            data = mine.copy()
            await dist.broadcast(data, root)
            assert (data == of_rank(root, count)).all()
        await dist.barrier()
        parts = [np.empty(count, np.float32) for _ in ranks]
        await dist.all_gather(parts, mine)
        assert all((part == of_rank(other, count)).all() for other, part in enumerate(parts))
        await dist.all_to_all(parts, [mine] * size)
        assert all((part == of_rank(other, count)).all() for other, part in enumerate(parts))
        into = np.empty(count, np.float32)
        await dist.reduce_scatter(into, [mine] * size)
        assert (into == total(ranks, count)).all()
        data = mine.copy()
        await dist.reduce(data, 0)
        assert rank != 0 or (data == total(ranks, count)).all()
        await dist.gather(mine, parts if rank == 0 else None, 0)
        assert rank != 0 or all((p == of_rank(o, count)).all() for o, p in enumerate(parts))
        await dist.scatter(into, [mine] * size if rank == 0 else None, 0)
        assert (into == of_rank(0, count)).all()
    for _ in range(10):
        await dist.barrier()
