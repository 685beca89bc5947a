"""Schedules, run in any order that the waits between ranks allow, complete with the right result.

A rank that releases a chunk too early, or waits for too little, has it overwritten in some orders.
A rank that waits for a step that never comes stops all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from aiodist.collectives.all_gather_shared import all_gather_chunks
from aiodist.collectives.all_reduce_chain import all_reduce_chain
from aiodist.collectives.all_reduce_exchange import all_reduce_exchange
from aiodist.collectives.all_reduce_stripes import all_reduce_stripes, reduce_stripes
from aiodist.collectives.all_to_all_shared import all_to_all_chunks
from aiodist.collectives.broadcast_shared import broadcast_chunks
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks
from aiodist.collectives.schedule import READ, READ_REPOSTED, RELEASE, REPOST, WRITE, Step

CHUNK = 1024
ORDERS = 16


class Model:
    """The memory and the words of ranks, as a `ChunkWords` promises them."""

    def __init__(self, size: int, depth: int) -> None:
        self.size, self.depth = size, depth
        self.memory = [[memoryview(bytearray(CHUNK)) for _ in range(depth)] for _ in range(size)]
        self.posted = [[0] * depth for _ in range(size)]
        self.progress = [0] * size

    def may(self, rank: int, action: Step) -> bool:
        kind, other, step, _, _ = action
        if kind == WRITE:
            others = self.progress[:rank] + self.progress[rank + 1 :]
            return min(others) >= step - self.depth + 1
        if kind in (READ, READ_REPOSTED):
            least = 2 * step + 1 + (kind == READ_REPOSTED)
            return self.posted[other][step % self.depth] >= least
        return True

    def do(self, rank: int, action: Step) -> None:
        kind, _, step, copies, reductions = action
        for into, data in copies:
            into[:] = data
        for reduction in reductions:
            reduction()
        if kind == RELEASE:
            self.progress[rank] = max(self.progress[rank], step)
        elif kind in (WRITE, REPOST):
            self.posted[rank][step % self.depth] = 2 * step + 1 + (kind == REPOST)


class Seen:
    """One rank's shared-memory context of a `Model`."""

    chunk_bytes = CHUNK
    slot_bytes = 0
    oversubscribed = False

    def __init__(self, model: Model, rank: int) -> None:
        self.rank, self.size, self.depth = rank, model.size, model.depth
        self._model = model

    def chunk(self, rank: int, step: int) -> memoryview:
        return self._model.memory[rank][step % self.depth]


def carry_out(size: int, depth: int, schedule: Callable[[Any], Iterator[Step]], seed: int) -> None:
    """``schedule(shm)`` of all ranks: by ``seed`` each goes as far as it comes, or all go by turns."""
    model, rng = Model(size, depth), random.Random(seed)
    rows = {rank: schedule(Seen(model, rank)) for rank in range(size)}
    ahead = {rank: next(run) for rank, run in rows.items()}
    eager = rng.random()
    last = 0
    while ahead:
        able = [rank for rank, action in ahead.items() if model.may(rank, action)]
        assert able, f"all wait for each other: {ahead}"
        rank = last if last in able and rng.random() < eager else rng.choice(able)
        model.do(rank, ahead[rank])
        last = rank
        try:
            ahead[rank] = next(rows[rank])
        except StopIteration:
            del ahead[rank]
            model.progress[rank] = 1 << 40  # a rank that has ended reads no more


Case = tuple[Callable[[Any], Iterator[Step]], Callable[[], bool]]
"""What a rank does, by its shared-memory context; and whether all have what they are to have then."""


def view(array: np.ndarray) -> memoryview:
    return memoryview(array.view("u1").reshape(-1))


def views(rows: np.ndarray) -> list[memoryview]:
    return [view(run) for run in rows]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-(2**30), 2**30, shape, "i4")


def reducing(make: Callable[..., Iterator[Step]], size: int, count: int, op: Any) -> Case:
    given = numbers(size, count)
    data = given.copy()
    total = given.sum(0, dtype="i4")
    return lambda shm: make(shm, view(data[shm.rank]), op), lambda: (data == total).all()


def reduce(size: int, count: int, op: Any) -> Case:
    given, root = numbers(size, count), size // 2
    data = given.copy()
    total = given.sum(0, dtype="i4")
    return (
        lambda shm: reduce_stripes(shm, root, view(data[shm.rank]), op),
        lambda: (data[root] == total).all(),
    )


def broadcast(size: int, count: int, op: Any) -> Case:
    data, root = numbers(size, count), size // 2
    wanted = data[root].copy()
    return (
        lambda shm: broadcast_chunks(shm, root, view(data[shm.rank])),
        lambda: (data == wanted).all(),
    )


def all_gather(size: int, count: int, op: Any) -> Case:
    given, blocks = numbers(size, count), np.zeros((size, size, count), "i4")
    for rank in range(size):
        blocks[rank, rank] = given[rank]
    return (
        lambda shm: all_gather_chunks(shm, views(blocks[shm.rank])),
        lambda: (blocks == given).all(),
    )


def reduce_scatter(size: int, count: int, op: Any) -> Case:
    given, out = numbers(size, size, count), np.zeros((size, count), "i4")
    total = given.sum(0, dtype="i4")
    return (
        lambda shm: reduce_scatter_chunks(shm, views(given[shm.rank]), view(out[shm.rank]), op),
        lambda: (out == total).all(),
    )


def all_to_all(size: int, count: int, op: Any) -> Case:
    given, nbytes = numbers(size, size, count), 4 * count
    out = np.zeros_like(given)

    def schedule(shm: Any) -> Iterator[Step]:
        inputs, outputs = views(given[shm.rank]), views(out[shm.rank])
        others = [other for other in range(size) if other != shm.rank]
        return all_to_all_chunks(shm, inputs, outputs, others, nbytes, nbytes)

    return schedule, lambda: (out == given.swapaxes(0, 1)).all()


CASES = {
    "all_reduce, exchange": partial(reducing, all_reduce_exchange),
    "all_reduce, stripes": partial(reducing, all_reduce_stripes),
    "all_reduce, chain": partial(reducing, all_reduce_chain),
    "reduce": reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for name in CASES for size in ((2,) if "exchange" in name else (2, 3, 4, 5))],
)
def test_right_in_any_order(reduction: Any, name: str, size: int, depth: int) -> None:
    op = reduction(np.add, "i4")
    for count in (1, CHUNK // 4 * size, 9 * CHUNK // 4 + 5):
        for seed in range(ORDERS):
            schedule, is_right = CASES[name](size, count, op)
            carry_out(size, depth, schedule, seed)
            assert is_right(), (count, seed)
