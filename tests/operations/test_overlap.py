"""Inputs and outputs that share memory: results are as if all inputs had been read first.

Only an all_to_all, and lists of results that share memory, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks

SIZE = 3
SLOT, SEVERAL_PIECES, CHUNKS = 1000, 150_000, 800_000
"""Float32 of a block: short, for slots that are copied in pieces, and for chunks in shared memory."""

Array = npt.NDArray[np.float32]
Case = Callable[[int, int], tuple[dist.Work[None], Sequence[Array], Sequence[Array]]]
"""By rank and length of a block: the operation, its results, and what they must be."""


@cache
def steps(count: int) -> Array:
    return np.resize(np.arange(4093, dtype=np.float32), count)


def block(rank: int, part: int, count: int) -> Array:
    """What ``rank`` has for ``part``, whose sums are exact."""
    return steps(count) + np.float32(4096 * (SIZE * rank + part))


def blocks(rank: int, count: int) -> Array:
    return np.concatenate([block(rank, part, count) for part in range(SIZE)])


def total(part: int, count: int, divisor: int = 1) -> Array:
    summed = block(0, part, count) + block(1, part, count) + block(2, part, count)
    return summed / np.float32(divisor)


def reduce_scatter_at(start: Callable[[int, int], int], op: dist.ReduceOp) -> Case:
    def case(rank: int, count: int) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
        data = blocks(rank, count)
        first = start(rank, count)
        place = data[first : first + count]
        work = dist.reduce_scatter_tensor(place, data, op)
        return work, [place], [total(rank, count, SIZE if op == dist.ReduceOp.AVG else 1)]

    return case


def reduce_scatter_of_list(
    rank: int, count: int
) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
    data = [block(rank, part, count) for part in range(SIZE)]
    place = data[(rank + 1) % SIZE]
    return dist.reduce_scatter(place, data), [place], [total(rank, count)]


def own_within(start: Callable[[int, int], int], rank: int, count: int) -> tuple[Array, Array]:
    """An array for the blocks of all ranks, and this rank's block, which lies in it from ``start`` on."""
    whole = np.zeros(SIZE * count, np.float32)
    first = start(rank, count)
    own = whole[first : first + count]
    own[:] = block(rank, 0, count)
    return whole, own


def all_gather_at(start: Callable[[int, int], int]) -> Case:
    def case(rank: int, count: int) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
        whole, own = own_within(start, rank, count)
        expected = np.concatenate([block(r, 0, count) for r in range(SIZE)])
        return dist.all_gather_into_tensor(whole, own), [whole], [expected]

    return case


def all_gather_of_list(
    rank: int, count: int
) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
    places = [np.zeros(count, np.float32) for _ in range(SIZE)]
    own = places[(rank + 1) % SIZE]
    own[:] = block(rank, 0, count)
    return dist.all_gather(places, own), places, [block(r, 0, count) for r in range(SIZE)]


def gather_single_at(start: Callable[[int, int], int]) -> Case:
    def case(rank: int, count: int) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
        if rank:
            return dist.gather_single(block(rank, 0, count)), [], []
        whole, own = own_within(start, rank, count)
        expected = np.concatenate([block(r, 0, count) for r in range(SIZE)])
        return dist.gather_single(own, whole), [whole], [expected]

    return case


def gather_at(start: Callable[[int, int], int]) -> Case:
    def case(rank: int, count: int) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
        if rank:
            return dist.gather(block(rank, 0, count)), [], []
        whole, own = own_within(start, rank, count)
        places = np.split(whole, SIZE)
        return dist.gather(own, places), places, [block(r, 0, count) for r in range(SIZE)]

    return case


def scatter_at(start: Callable[[int, int], int]) -> Case:
    def case(rank: int, count: int) -> tuple[dist.Work[None], Sequence[Array], Sequence[Array]]:
        if rank:
            place = np.zeros(count, np.float32)
            return dist.scatter(place), [place], [block(0, rank, count)]
        data = blocks(rank, count)
        first = start(rank, count)
        place = data[first : first + count]
        return dist.scatter(place, np.split(data, SIZE)), [place], [block(0, 0, count)]

    return case


def exactly(rank: int, count: int) -> int:
    """At this rank's own block."""
    return rank * count


def next_block(rank: int, count: int) -> int:
    return (rank + 1) % SIZE * count


def across(rank: int, count: int) -> int:
    """Over the halves of two blocks."""
    return count // 2 if rank < 2 else count + count // 2


def inside(rank: int, count: int) -> int:
    """Over most of this rank's own block, and some of the one before or behind it."""
    return rank * count + (100 if rank < SIZE - 1 else -100)


STARTS = (exactly, next_block, across, inside)
CASES: dict[str, Case] = {
    **{
        f"reduce_scatter, {op}, {start.__name__}": reduce_scatter_at(
            start, getattr(dist.ReduceOp, op)
        )
        for op in ("SUM", "AVG")
        for start in STARTS
    },
    **{
        f"{make.__name__.removesuffix('_at')}, {start.__name__}": make(start)
        for make in (all_gather_at, gather_at, gather_single_at, scatter_at)
        for start in STARTS
    },
    "reduce_scatter of a list": reduce_scatter_of_list,
    "all_gather of a list": all_gather_of_list,
}


@pytest.mark.parametrize("count", [SLOT, SEVERAL_PIECES, CHUNKS])
@pytest.mark.parametrize(
    ("transport", "hosts"),
    [
        ("shm", ()),
        ("inproc", ()),
        pytest.param("tcp", (), marks=pytest.mark.extended),
        ("shm", (0, 0, 1)),
    ],
)
async def test_inputs_are_as_if_read_before_anything_is_written(
    transport: str, hosts: Sequence[int], count: int
) -> None:
    async def main(rank: int) -> list[str]:
        wrong = []
        for name, case in CASES.items():
            work, found, expected = case(rank, count)
            await work
            if not all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
                wrong.append(name)
        return wrong

    found = await run_ranks(SIZE, main, transport, hosts=hosts, timeout=30)
    assert found == [[]] * SIZE


@pytest.mark.parametrize("count", [SLOT, CHUNKS])
async def test_equal_calls_on_other_memory_are_right(count: int) -> None:
    """Calls that share a plan and a schedule: apart, over each other, and apart again."""

    async def main(rank: int) -> None:
        whole, apart = np.zeros(SIZE * count, np.float32), np.zeros(count, np.float32)
        gathered = np.concatenate([block(r, 0, count) for r in range(SIZE)])
        for own in [apart, whole[count // 2 :][:count], whole[rank * count :][:count]] * 3:
            own[:] = block(rank, 0, count)
            await dist.all_gather_into_tensor(whole, own)
            assert np.array_equal(whole, gathered)
        for place in [apart, whole[count // 2 :][:count], whole[rank * count :][:count]] * 3:
            whole[:] = blocks(rank, count)
            await dist.reduce_scatter_tensor(place, whole)
            assert np.array_equal(place, total(rank, count))

    await run_ranks(SIZE, main, "shm", timeout=30)


@pytest.mark.parametrize("transport", ["shm", "inproc"])
async def test_an_all_to_all_in_place_is_refused_after_equal_calls(transport: str) -> None:
    """A plan of equal tensors at other addresses does not hide that two share memory."""

    async def main(rank: int) -> None:
        memory = torch.arange(4.0 * SIZE) + 100 * rank
        parts = [memory[: 2 * SIZE], memory[2 * SIZE :]]
        for _ in range(3):
            for first, second in ((0, 1), (1, 0)):
                await dist.all_to_all_single(parts[first], parts[second])
        for part in parts:
            with pytest.raises(dist.InvalidUsageError, match="output and input share memory"):
                dist.all_to_all_single(part, part)
        with pytest.raises(dist.InvalidUsageError, match="output and input share memory"):
            dist.all_to_all_single(memory[SIZE : 3 * SIZE], parts[0])
        await dist.all_to_all_single(parts[0], parts[1])

    await run_ranks(SIZE, main, transport, timeout=20)


@pytest.mark.parametrize("transport", ["shm", "inproc"])
async def test_an_all_to_all_between_parts_of_one_memory_is_taken(transport: str) -> None:
    """Parts side by side, empty ones inside of others, and columns, of which copies travel."""

    async def main(rank: int) -> None:
        memory = torch.full((4 * SIZE,), float(rank))
        sent, came = memory.split(2 * SIZE)
        for _ in range(3):
            sent.fill_(rank)
            await dist.all_to_all_single(came, sent)
            assert came.tolist() == [0, 0, 1, 1, 2, 2]
        inputs, outputs = [came[1:1] for _ in range(SIZE)], [sent[1:1] for _ in range(SIZE)]
        inputs[rank], outputs[rank] = sent, came
        await dist.all_to_all(outputs, inputs)
        assert (came == rank).all()
        await dist.all_to_all([came[:2], came[2:4], came[4:]], [sent[:2]] * SIZE)
        assert came.tolist() == [0, 0, 1, 1, 2, 2]
        columns = torch.full((2 * SIZE, 2), float(rank))
        await dist.all_to_all_single(columns[:, 0], columns[:, 1])
        assert columns[:, 0].tolist() == [0, 0, 1, 1, 2, 2]

    await run_ranks(SIZE, main, transport, timeout=20)
