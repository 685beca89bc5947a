"""After an all_reduce every rank has the same bits, whatever rounds and whatever algorithm ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import product

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.collectives.select import MANY, RULES, Choice, select
from aiodist.testing.in_process import run_ranks
from tests.operations.memory import to_torch

SIZES = (2, 3, 4, 5, 8)
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")


def lengths(size: int, itemsize: int) -> Iterator[tuple[int, Choice]]:
    """Elements on both sides of every limit in the table of algorithms."""
    limits = set()
    for rule in RULES["all_reduce"]:
        if rule.least <= size <= rule.ranks and not (rule.power_of_two and size & (size - 1)):
            if rule.nbytes >= MANY:
                break  # no row behind this one is asked
            limits.add(rule.nbytes)
    for nbytes in sorted({7 * itemsize, *limits, *(limit + itemsize for limit in limits)}):
        yield nbytes // itemsize, select("all_reduce", size, nbytes)


def hard(count: int, rank: int) -> np.ndarray:
    """Numbers so far apart that every order of adding gives other bits, and special ones."""
    rng = np.random.default_rng(rank)
    some = rng.standard_normal(4099) * 10.0 ** rng.integers(-4, 4, 4099)
    some[rng.integers(0, 4099, 300)] = -0.0
    some[rng.integers(0, 4099, 100)] = np.inf
    some[rng.integers(0, 4099, 100)] = -np.inf
    return np.resize(some, count).astype(np.float32)


def with_nans(values: np.ndarray, rank: int) -> np.ndarray:
    """Some become NaNs of both signs, quiet and signalling, each rank's with bits of its own."""
    bits = values.view(np.uint32)
    for start, nan in ((rank, 0x7FC00000), (rank + 5, 0xFFC00000), (11, 0x7F800000)):
        bits[start::97] = nan | (rank + 1) << 4
    return values


def digest(tensor: torch.Tensor) -> bytes:
    plain = tensor if not tensor.is_complex() else torch.view_as_real(tensor)
    return blake2b(plain.contiguous().view(torch.uint8).numpy().data).digest()


def test_the_limits_reach_every_algorithm() -> None:
    reached = {choice for size in SIZES for _, choice in lengths(size, 4)}
    in_table = {rule.choice.algorithm for rule in RULES["all_reduce"]}
    assert {choice.algorithm for choice in reached} == in_table


@pytest.mark.parametrize("size", SIZES)
async def test_same_bits_by_every_algorithm(size: int) -> None:
    found: dict[int, set[bytes]] = defaultdict(set)

    async def on_rank(rank: int) -> None:
        for count, _ in lengths(size, 4):
            tensor = torch.from_numpy(with_nans(hard(count, rank), rank))
            await dist.all_reduce(tensor)
            found[count].add(digest(tensor))

    await run_ranks(size, on_rank, timeout=60)
    choices = dict(lengths(size, 4))
    different = {count: choices[count] for count, bits in found.items() if len(bits) > 1}
    assert set(found) == set(choices)
    assert not different


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0,) * 8, (0, 0, 1, 1, 1)])
@pytest.mark.parametrize("dtype", FLOATS)
async def test_same_bits_of_every_dtype_and_op(hosts: tuple[int, ...], dtype: str) -> None:
    found: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    is_complex = dtype.startswith("complex")

    async def on_rank(rank: int) -> None:
        for op in OPS[:3] if is_complex else OPS:
            for count in (7, 20000, 60001):
                values = with_nans(hard(count * (1 + is_complex), rank), rank)
                given = values.view(np.complex64) if is_complex else values
                tensor = to_torch(given, dtype)
                await dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                found[op, count].add(digest(tensor))

    transport = "shm" if any(hosts) else "inproc"
    await run_ranks(len(hosts), on_rank, transport, hosts=hosts, timeout=60)
    assert len(found) == 3 * (3 if is_complex else 5)
    assert not [key for key, bits in found.items() if len(bits) > 1]


@pytest.mark.parametrize("transport", ["inproc", "shm"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
async def test_same_bits_of_few_elements_in_any_memory(dtype: str, transport: str) -> None:
    """Each rank's arrays begin at another byte."""
    found: dict[tuple[str, int, int], set[bytes]] = defaultdict(set)
    is_complex = dtype.startswith("complex")

    async def on_rank(rank: int) -> None:
        rng = np.random.default_rng(rank)
        for op, count, turn in product(OPS[:3] if is_complex else OPS, (1, 2, 3), range(8)):
            array = np.frombuffer(bytearray(64), dtype, count, offset=rank * (turn % 4))
            numbers = rng.standard_normal((count, 1 + is_complex))
            array[:] = numbers @ [1, 1j] if is_complex else numbers[:, 0]
            await dist.all_reduce(array, getattr(dist.ReduceOp, op))
            found[op, count, turn].add(array.tobytes())

    await run_ranks(3, on_rank, transport, timeout=60)
    assert not [key for key, bits in found.items() if len(bits) > 1]


@pytest.mark.parametrize("size", SIZES)
async def test_signs_of_zero_and_nans_are_kept_where_all_ranks_have_them(size: int) -> None:
    async def on_rank(rank: int) -> None:
        for count in (3, 40000):
            for op in ("SUM", "MIN", "MAX"):
                tensor = torch.full((count,), -0.0)
                await dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                assert torch.signbit(tensor).all(), op
                tensor[::2] = torch.nan if rank == 1 else 1.0
                await dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                assert tensor[::2].isnan().all(), op
                assert not tensor[1::2].isnan().any(), op

    await run_ranks(size, on_rank, timeout=60)


@pytest.mark.parametrize("size", SIZES)
async def test_sums_are_as_near_as_float32_allows(size: int) -> None:
    """Every algorithm's sum of numbers that round, against numpy's in double precision."""

    def given(count: int, rank: int) -> np.ndarray:
        return np.resize(np.random.default_rng(rank).standard_normal(4099), count).astype("f4")

    async def on_rank(rank: int) -> None:
        for count, choice in lengths(size, 4):
            tensor = given(count, rank)
            await dist.all_reduce(tensor)
            if rank == size - 1:
                inputs = np.stack([given(min(count, 4099), r) for r in range(size)]).astype("f8")
                expected = np.resize(inputs.sum(0), count)
                bound = np.resize(np.abs(inputs).sum(0), count) * size * np.finfo("f4").eps
                assert (np.abs(tensor - expected) <= bound).all(), (count, choice)

    await run_ranks(size, on_rank, timeout=60)
