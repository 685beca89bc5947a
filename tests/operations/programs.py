"""Every operation as the matrix calls it: one rank's inputs, the call, and what it must leave.

A program is a coroutine over a `Rank`. It makes tensors with `Rank.given` and `Rank.blank`, says in
their ``expected`` what they must hold afterwards, and returns when its operation is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np

import aiodist as dist
from aiodist.p2p.outbox import EAGER_BYTES
from tests.operations.design import MOVING, REDUCING, Case
from tests.operations.memory import FILLER, Array, Block, carrier, to_numpy
from tests.operations.oracle import factor, reduced, values

KIB = 1024
LARGE = 4 * KIB * KIB
_SINGLE = ("broadcast", "reduce", "all_reduce", "all_reduce_coalesced")
_STEPS = {"-1": -1, "+1": 1}


def count_of(case: Case) -> int:
    """Elements of one block of a case; of all the data, where the operation has no blocks.

    Blocks of "chunk" bytes are cut (or just not) by a pipeline, "eager" ones go out unasked (or
    just not).
    """
    if case.length in ("none", "one", "odd"):
        return {"none": 0, "one": 1, "odd": 15}[case.length]
    itemsize = {"bfloat16": 2, "complex32": 4}.get(case.dtype, carrier(case.dtype).itemsize)
    name, step = case.length, 0
    if name[-2:] in _STEPS:
        name, step = name[:-2], _STEPS[name[-2:]]
    single = case.operation in _SINGLE or case.size == 1
    if name == "chunk":
        each = 128 * KIB if single else 64 * KIB
        nbytes = 64 * KIB * case.size if case.operation.startswith("all_reduce") else each
    elif name == "eager":
        # Reductions send no longer messages than chunks. With many ranks all blocks together are
        # as long as this: the protocol is the same as with few, and the copies take their time.
        shared = case.operation.startswith("reduce_") or (case.size > 4 and not single)
        nbytes = EAGER_BYTES // (case.size if shared else 1)
    else:
        nbytes, step = LARGE // (1 if single else case.size), 5
    return nbytes // itemsize + step


class Rank:
    """One rank's part in a case."""

    def __init__(self, case: Case, number: int) -> None:
        self.case = case
        self.number = number
        self.size = case.size
        self.count = count_of(case)
        self.root = sum(map(ord, str(case))) % case.size
        self.next = (number + 1) % case.size
        self.previous = (number - 1) % case.size
        self.op = self._reduce_op()
        self.notes: list[str] = []
        self._expected: list[tuple[str, Block, Array]] = []

    def _reduce_op(self) -> dist.ReduceOp:
        if self.case.op == "PREMUL_SUM":
            return dist.ReduceOp.premul_sum(factor(self.number))
        return getattr(dist.ReduceOp, self.case.op, dist.ReduceOp.SUM)

    def kind(self, number: int) -> str:
        if self.case.kind == "mixed":
            return "numpy" if number % 2 else "torch"
        return self.case.kind

    def values(self, number: int, piece: int = 0, count: int | None = None) -> Array:
        """Rank ``number``'s input."""
        count = self.count if count is None else count
        return values(self.case.dtype, self.case.op, number, piece, count)

    def uneven(self, number: int) -> int:
        """Elements of rank ``number``'s block where they differ."""
        return self.count + number % 3

    def given(self, given: Array, name: str = "input") -> Any:
        """A tensor with these values, which the operation must leave as they are."""
        block = Block(given, self.case.dtype, self.kind(self.number), self.case.layout)
        self._expected.append((name, block, given))
        return block.tensor

    def filled(self, before: Array, after: Array, name: str = "output") -> Any:
        """A tensor that holds ``before`` and must hold ``after`` in the end."""
        block = Block(before, self.case.dtype, self.kind(self.number), self.case.layout)
        self._expected.append((name, block, after))
        return block.tensor

    def blank(self, expected: Array, name: str = "output") -> Any:
        """A tensor that must hold ``expected`` in the end."""
        return self.filled(np.full(expected.shape, FILLER, expected.dtype), expected, name)

    def reduced(self, piece: int = 0, count: int | None = None) -> Array:
        """The reduction of all ranks' inputs."""
        case = self.case
        return _reduced(
            case.dtype, case.op, case.size, piece, self.count if count is None else count
        )

    def same(self, found: Any, expected: Any, name: str) -> None:
        if found != expected:
            self.notes.append(f"{name} is {found}, not {expected}")

    def same_tensor(self, found: Any, number: int) -> None:
        """Whether ``found`` is like rank ``number``'s input: kind, dtype, shape and values."""
        like = Block(self.values(number), self.case.dtype, self.kind(number), self.case.layout)
        self.same(type(found), type(like.tensor), f"type of rank {number}'s tensor")
        self.same(found.dtype, like.tensor.dtype, f"dtype of rank {number}'s tensor")
        self.same(tuple(found.shape), tuple(like.tensor.shape), f"shape of rank {number}'s tensor")
        if not np.array_equal(to_numpy(found).reshape(-1), self.values(number)):
            self.notes.append(f"rank {number}'s tensor has other values")

    def wrong(self) -> list[str]:
        """What is wrong afterwards, a line for each thing."""
        lines = list(self.notes)
        for name, block, expected in self._expected:
            note = block.wrong(expected)
            if note is not None:
                lines.append(f"{name} {note}")
        return [f"{self.case}: rank {self.number}: {line}" for line in lines]


@lru_cache(maxsize=16)
def _reduced(dtype: str, op: str, size: int, piece: int, count: int) -> Array:
    inputs = [values(dtype, op, number, piece, count) for number in range(size)]
    result = reduced(inputs, op, dtype)
    result.flags.writeable = False
    return result


# -- point to point; a world of one has no peer


async def isend_irecv(rank: Rank) -> None:
    if rank.size == 1:
        return
    into = rank.blank(rank.values(rank.previous))
    receiving = dist.irecv(into, rank.previous, tag=7)
    sending = dist.isend(rank.given(rank.values(rank.number)), rank.next, tag=7)
    rank.same(await receiving, rank.previous, "source")
    rank.same(receiving.source_rank(), rank.previous, "source_rank()")
    await sending


async def recv_any_source(rank: Rank) -> None:
    """All send to the root, which takes them as they come.

    A tag of its own for each case: another rank may be ahead, in the next one. 26 bits, which
    every MPI has as well.
    """
    tag = crc32(str(rank.case).encode()) % (1 << 26)
    if rank.number != rank.root:
        await dist.send(rank.given(rank.values(rank.number)), rank.root, tag=tag)
        return
    sources = []
    for _ in range(rank.size - 1):
        into = Block(rank.values(rank.root), rank.case.dtype, rank.kind(rank.root), "contiguous")
        source = await dist.recv(into.tensor, tag=tag)
        sources.append(source)
        note = into.wrong(rank.values(source))
        rank.same(note, None, f"message of rank {source}")
    rank.same(sorted(sources), [n for n in range(rank.size) if n != rank.root], "sources")


async def recv_without_buffer(rank: Rank) -> None:
    if rank.size == 1:
        return
    sending = dist.isend(rank.given(rank.values(rank.number)), rank.next)
    received = await dist.recv(src=rank.previous)
    await sending
    rank.same(received.source, rank.previous, "source")
    rank.same_tensor(received.tensor, rank.previous)


async def batch_isend_irecv(rank: Rank) -> None:
    """Both neighbours at once, which with two ranks are the same one."""
    if rank.size == 1:
        return
    n, before, after = rank.number, rank.previous, rank.next
    batch = [
        dist.P2POp(dist.isend, rank.given(rank.values(n, 1)), after, tag=1),
        dist.P2POp(dist.isend, rank.given(rank.values(n, 2)), before, tag=2),
        dist.P2POp(dist.irecv, rank.blank(rank.values(before, 1)), before, tag=1),
        dist.P2POp(dist.irecv, rank.blank(rank.values(after, 2)), after, tag=2),
    ]
    results = [await work for work in dist.batch_isend_irecv(batch)]
    rank.same(results, [None, None, before, after], "results")


# -- collectives


async def broadcast(rank: Rank) -> None:
    sent = rank.values(rank.root)
    tensor = rank.given(sent) if rank.number == rank.root else rank.blank(sent)
    await dist.broadcast(tensor, rank.root)


async def all_reduce(rank: Rank) -> None:
    tensor = rank.filled(rank.values(rank.number), rank.reduced())
    await dist.all_reduce(tensor, rank.op)


async def all_reduce_coalesced(rank: Rank) -> None:
    counts = [rank.count, 1, rank.count // 2]
    tensors = [
        rank.filled(rank.values(rank.number, piece, count), rank.reduced(piece, count))
        for piece, count in enumerate(counts)
    ]
    await dist.all_reduce_coalesced(tensors, rank.op)


async def reduce(rank: Rank) -> None:
    mine = rank.values(rank.number)
    is_root = rank.number == rank.root
    tensor = rank.filled(mine, rank.reduced()) if is_root else rank.given(mine)
    await dist.reduce(tensor, rank.root, rank.op)


async def all_gather(rank: Rank) -> None:
    outputs = [rank.blank(rank.values(n), f"output[{n}]") for n in range(rank.size)]
    await dist.all_gather(outputs, rank.given(rank.values(rank.number)))


async def all_gather_uneven(rank: Rank) -> None:
    parts = [rank.values(n, 0, rank.uneven(n)) for n in range(rank.size)]
    outputs = [rank.blank(part, f"output[{n}]") for n, part in enumerate(parts)]
    await dist.all_gather(outputs, rank.given(parts[rank.number]))


async def all_gather_into_tensor(rank: Rank) -> None:
    parts = [rank.values(n) for n in range(rank.size)]
    await dist.all_gather_into_tensor(
        rank.blank(np.concatenate(parts)), rank.given(parts[rank.number])
    )


async def all_gather_coalesced(rank: Rank) -> None:
    counts = [rank.count, 1, rank.count // 2]
    outputs = [
        [
            rank.blank(rank.values(n, i, count), f"output[{n}][{i}]")
            for i, count in enumerate(counts)
        ]
        for n in range(rank.size)
    ]
    inputs = [rank.given(rank.values(rank.number, i, count)) for i, count in enumerate(counts)]
    await dist.all_gather_coalesced(outputs, inputs)


async def _gather(rank: Rank, parts: list[Array]) -> None:
    outputs = None
    if rank.number == rank.root:
        outputs = [rank.blank(part, f"output[{n}]") for n, part in enumerate(parts)]
    await dist.gather(rank.given(parts[rank.number]), outputs, rank.root)


async def gather(rank: Rank) -> None:
    await _gather(rank, [rank.values(n) for n in range(rank.size)])


async def gather_uneven(rank: Rank) -> None:
    await _gather(rank, [rank.values(n, 0, rank.uneven(n)) for n in range(rank.size)])


async def gather_single(rank: Rank) -> None:
    parts = [rank.values(n) for n in range(rank.size)]
    output = rank.blank(np.concatenate(parts)) if rank.number == rank.root else None
    await dist.gather_single(rank.given(parts[rank.number]), output, rank.root)


async def _scatter(rank: Rank, parts: list[Array]) -> None:
    inputs = None
    if rank.number == rank.root:
        inputs = [rank.given(part, f"input[{n}]") for n, part in enumerate(parts)]
    await dist.scatter(rank.blank(parts[rank.number]), inputs, rank.root)


async def scatter(rank: Rank) -> None:
    await _scatter(rank, [rank.values(rank.root, n) for n in range(rank.size)])


async def scatter_uneven(rank: Rank) -> None:
    await _scatter(rank, [rank.values(rank.root, n, rank.uneven(n)) for n in range(rank.size)])


async def _reduce_scatter(rank: Rank, counts: list[int]) -> None:
    inputs = [
        rank.given(rank.values(rank.number, n, count), f"input[{n}]")
        for n, count in enumerate(counts)
    ]
    output = rank.blank(rank.reduced(rank.number, counts[rank.number]))
    await dist.reduce_scatter(output, inputs, rank.op)


async def reduce_scatter(rank: Rank) -> None:
    await _reduce_scatter(rank, [rank.count] * rank.size)


async def reduce_scatter_uneven(rank: Rank) -> None:
    await _reduce_scatter(rank, [rank.uneven(n) for n in range(rank.size)])


async def reduce_scatter_tensor(rank: Rank) -> None:
    parts = [rank.values(rank.number, n) for n in range(rank.size)]
    output = rank.blank(rank.reduced(rank.number))
    await dist.reduce_scatter_tensor(output, rank.given(np.concatenate(parts)), rank.op)


async def _all_to_all(rank: Rank, count: Callable[[int, int], int]) -> None:
    """``count(s, d)``: elements from rank s to rank d."""
    me, everybody = rank.number, range(rank.size)
    inputs = [rank.given(rank.values(me, n, count(me, n)), f"input[{n}]") for n in everybody]
    outputs = [rank.blank(rank.values(n, me, count(n, me)), f"output[{n}]") for n in everybody]
    await dist.all_to_all(outputs, inputs)


async def all_to_all(rank: Rank) -> None:
    await _all_to_all(rank, lambda source, target: rank.count)


async def all_to_all_uneven(rank: Rank) -> None:
    await _all_to_all(rank, lambda source, target: rank.uneven(source + 2 * target))


def _rows(parts: list[Array], shape: tuple[int, ...]) -> Array:
    return np.concatenate(parts).reshape(-1, *shape)


async def _all_to_all_single(rank: Rank, rows: Callable[[int, int], int], even: bool) -> None:
    """``rows(s, d)``: from rank s to rank d. The layout decides what a row is."""
    me, everybody = rank.number, range(rank.size)
    shapes = {"channels_last": (2, 1, 3), "transposed": (3,), "reversed": (2,)}
    shape = shapes.get(rank.case.layout, ())
    sent, due = [rows(me, n) for n in everybody], [rows(n, me) for n in everybody]
    inputs = [rank.values(me, n, sent[n] * prod(shape)) for n in everybody]
    outputs = [rank.values(n, me, due[n] * prod(shape)) for n in everybody]
    output, given = rank.blank(_rows(outputs, shape)), rank.given(_rows(inputs, shape))
    if even:
        await dist.all_to_all_single(output, given)
    else:
        await dist.all_to_all_single(output, given, due, sent)


async def all_to_all_single(rank: Rank) -> None:
    await _all_to_all_single(rank, lambda source, target: rank.count, True)


async def all_to_all_single_uneven(rank: Rank) -> None:
    """Some ranks have nothing for some others."""
    await _all_to_all_single(
        rank, lambda source, target: (source + 2 * target + 1) % 3 * (rank.count // 2), False
    )


# -- objects that hold tensors


async def all_gather_object(rank: Rank) -> None:
    objects: list[Any] = [None] * rank.size
    await dist.all_gather_object(objects, rank.given(rank.values(rank.number)))
    for number, found in enumerate(objects):
        rank.same_tensor(found, number)


async def broadcast_object_list(rank: Rank) -> None:
    objects: list[Any] = [None, None]
    if rank.number == rank.root:
        tensor = rank.given(rank.values(rank.root))
        objects = [{"tensor": tensor}, "text"]
    await dist.broadcast_object_list(objects, rank.root)
    rank.same(objects[1], "text", "the second object")
    rank.same_tensor(objects[0]["tensor"], rank.root)


Program = Callable[[Rank], Awaitable[None]]

PROGRAMS = MappingProxyType({name: globals()[name] for name in MOVING + REDUCING})
