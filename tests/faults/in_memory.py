"""What the matrix does to ranks that share memory: strike at a flag, damage what is put up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.groups import process_group
from aiodist.groups.board import LineBoard
from aiodist.groups.plane import Plane
from aiodist.groups.world import current_world
from aiodist.shared.box import BoxIn, BoxOut
from aiodist.shared.lane import LaneIn, LaneOut

CHUNKED = 1_100_000
"""Elements of four bytes: some chunks for each rank, and what goes along a chain where ranks outnumber
cores."""


def plane_of_the_world() -> Plane:
    """The default group's. AssertionError where its ranks share no memory."""
    plane = current_world().default_group().plane
    assert plane is not None, "the ranks share no memory"
    return plane


def at_flag(number: int, act: Callable[[], None]) -> None:
    """Call ``act()`` when this process has written its ``number``-th flag from now on, before it
    rings for whoever sleeps over it; the flag that is its progress counts afterwards once more."""
    advance, wake, fill, taken = Plane.advance, Plane.wake, LaneOut.fill, LaneIn.taken
    put, take = BoxOut.put, BoxIn.take
    written = 0

    def count() -> None:
        nonlocal written
        written += 1
        if written == number:
            act()

    def counted_advance(plane: Plane, progress: int) -> None:
        before = plane.progress
        advance(plane, progress)
        if plane.progress != before:
            count()

    def counted_wake(plane: Plane, word: int) -> None:
        count()
        wake(plane, word)

    def counted_fill(lane: LaneOut, data: memoryview, whose: int) -> bool:
        must_wake = fill(lane, data, whose)
        count()
        return must_wake

    def counted_taken(lane: LaneIn) -> bool:
        must_wake = taken(lane)
        count()
        return must_wake

    def counted_put(box: BoxOut, *message: Any) -> bool:
        has_room = put(box, *message)
        if has_room:
            count()
        return has_room

    def counted_take(box: BoxIn, number: int) -> None:
        take(box, number)
        count()

    Plane.advance = counted_advance  # type: ignore[method-assign]
    Plane.wake = counted_wake  # type: ignore[method-assign]
    LaneOut.fill = counted_fill  # type: ignore[method-assign]
    LaneIn.taken = counted_taken  # type: ignore[method-assign]
    BoxOut.put = counted_put  # type: ignore[method-assign]
    BoxIn.take = counted_take  # type: ignore[method-assign]


def damage_next(bits: int) -> None:
    """Flip ``bits`` of the first byte of the fingerprint that this process puts up next."""
    swap, put_up = process_group.swap, LineBoard.put_up

    def restore() -> None:
        process_group.swap, LineBoard.put_up = swap, put_up  # type: ignore[method-assign]

    def damaged_swap(plane: Plane, sequence: int, what: Any, given: Any) -> bool:
        low, high = what.fingerprint.words
        damaged: Any = SimpleNamespace(
            fingerprint=SimpleNamespace(words=(low ^ bits, high)),
            nbytes=what.nbytes,
            worth=what.worth,
            pieces=what.pieces,
            room=what.room,
            reads=what.reads,
            knows_all=what.knows_all,
            fill=what.fill,
            go_ahead=what.go_ahead,
            finish=what.finish,
            fill_piece=what.fill_piece,
            finish_piece=what.finish_piece,
        )
        is_over = swap(plane, sequence, damaged, given)
        if is_over:  # else it puts up the same again
            restore()
        return is_over

    def damaged_put_up(board: LineBoard, nbytes: int) -> None:
        restore()
        line = board.line
        low, high = line.meta_words
        board.line = SimpleNamespace(meta_words=(low ^ bits, high))  # type: ignore[assignment]
        try:
            put_up(board, nbytes)
        finally:
            board.line = line

    process_group.swap = damaged_swap
    LineBoard.put_up = damaged_put_up  # type: ignore[method-assign]


async def all_kinds(rank: int, size: int) -> None:
    """A row of messages and collectives, small and in pieces. AssertionError where one goes wrong."""
    total = size * (size + 1) / 2
    left, right = (rank - 1) % size, (rank + 1) % size
    for count in (1, CHUNKED // 500):
        works = [dist.isend(np.full(count, rank + tag), right, tag=tag) for tag in range(3)]
        for tag in (2, 0, 1):  # so that some wait in the box, and the last is taken ahead
            into = np.empty(count, int)
            await dist.recv(into, left, tag=tag)
            assert (into == left + tag).all()
        for work in works:
            await work
    for count in (CHUNKED // 8, CHUNKED):
        into = np.empty(count, np.float32)
        sent = dist.isend(np.full(count, rank + 1, np.float32), right)
        await dist.recv(into, left)
        await sent
        assert (into == left + 1).all()
    for count in (1, CHUNKED):
        mine = np.full(count, rank + 1, np.float32)
        data = mine.copy()
        await dist.all_reduce(data)
        assert (data == total).all()
        for root in (0, size - 1):
            data = mine.copy()
            await dist.broadcast(data, root)
            assert (data == root + 1).all()
        await dist.barrier()
        parts = [np.empty(count, np.float32) for _ in range(size)]
        await dist.all_gather(parts, mine)
        assert all((part == other + 1).all() for other, part in enumerate(parts))
        await dist.all_to_all(parts, [mine] * size)
        assert all((part == other + 1).all() for other, part in enumerate(parts))
        into = np.empty(count, np.float32)
        await dist.reduce_scatter(into, [mine] * size)
        assert (into == total).all()
        data = mine.copy()
        await dist.reduce(data, 0)
        assert rank != 0 or (data == total).all()
        await dist.gather(mine, parts if rank == 0 else None, 0)
        await dist.scatter(into, [mine] * size if rank == 0 else None, 0)
        assert (into == 1).all()
    for _ in range(10):
        await dist.barrier()
