"""Collectives over several tensors of each rank, on CPU tensors and arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.errors import InvalidUsageError
from aiodist.tensors import tensor_lists
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of
from tests.operations.bad_input.calls import Entry, check_refused, each, read_only, t, ts
from tests.operations.memory import to_numpy, to_torch
from tests.operations.oracle import reduced, values

COUNT = 7
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
KINDS = ("torch", "numpy")
Case = tuple[int, int]
"""Ranks, and tensors of each."""
CASES: list[Case] = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3)]


def inputs(rank: int, n: int, dtype: str, kind: str, op: str = "SUM") -> list[Any]:
    """This rank's tensors: of several shapes and layouts, with equally many elements."""
    found: list[Any] = []
    for i in range(n):
        array = values(dtype, op, rank, i, 2 * COUNT)
        tensor = to_torch(array, dtype) if kind == "torch" else array.copy()
        found.append(tensor.reshape(COUNT, 2).T if i % 2 else tensor)
    return found


def flat(tensors: list[Any]) -> list[np.ndarray[Any, Any]]:
    return [to_numpy(tensor).reshape(-1) for tensor in tensors]


def everything(size: int, n: int, dtype: str, op: str = "SUM") -> list[np.ndarray[Any, Any]]:
    return [array for rank in range(size) for array in flat(inputs(rank, n, dtype, "torch", op))]


def dtypes_of(op: str) -> list[str]:
    return ["int32", "uint8"] if op.startswith("B") else ["float32", "int64", "bfloat16", "uint16"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
async def test_all_reduce_makes_all_tensors_of_all_ranks_one(op: str, kind: str) -> None:
    for (size, n), dtype in ((case, dtype) for case in CASES for dtype in dtypes_of(op)):
        if kind == "numpy" and dtype == "bfloat16":
            continue

        async def on_rank(rank: int, n: int = n, dtype: str = dtype) -> list[Any]:
            tensors = inputs(rank, n, dtype, kind, op)
            assert await dist.all_reduce_multigpu(tensors, getattr(dist.ReduceOp, op)) is None
            return flat(tensors)

        expected = reduced(everything(size, n, dtype, op), op, dtype)
        for found in await run_ranks(size, on_rank):
            assert len(found) == n
            for tensor in found:
                np.testing.assert_array_equal(tensor, expected, f"{op} {size} {n} {dtype}")


async def test_premul_sum_multiplies_every_tensor_of_a_rank_by_its_factor() -> None:
    async def on_rank(rank: int) -> list[Any]:
        tensors = [torch.full((3,), 1.0 + rank), torch.full((3,), 5.0)]
        await dist.all_reduce_multigpu(tensors, dist.ReduceOp.premul_sum(10 ** (rank + 1)))
        return flat(tensors)

    for found in await run_ranks(2, on_rank):
        np.testing.assert_array_equal(found, np.full((2, 3), 10 * 6 + 100 * 7, np.float32))


async def test_bool_sum_is_or() -> None:
    async def on_rank(rank: int) -> list[Any]:
        tensors = [torch.tensor([False, rank == 1]), torch.tensor([False, False])]
        await dist.all_reduce_multigpu(tensors)
        return [tensor.tolist() for tensor in tensors]

    assert await run_ranks(2, on_rank) == [[[False, True]] * 2] * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
async def test_reduce_changes_one_tensor_of_one_rank(op: str, kind: str) -> None:
    for size, n in CASES:
        dst, dst_tensor = size - 1, n - 1

        async def on_rank(
            rank: int, n: int = n, dst: int = dst, dst_tensor: int = dst_tensor
        ) -> list[Any]:
            tensors = inputs(rank, n, "int64", kind, op)
            op_ = getattr(dist.ReduceOp, op)
            await dist.reduce_multigpu(tensors, dst, op_, dst_tensor=dst_tensor)
            return flat(tensors)

        ranks = await run_ranks(size, on_rank)
        for rank, found in enumerate(ranks):
            before = flat(inputs(rank, n, "int64", kind, op))
            for i, tensor in enumerate(found):
                is_target = (rank, i) == (dst, dst_tensor)
                whole = reduced(everything(size, n, "int64", op), op, "int64")
                np.testing.assert_array_equal(tensor, whole if is_target else before[i])


@pytest.mark.parametrize("kind", KINDS)
async def test_broadcast_copies_one_tensor_of_one_rank_to_all(kind: str) -> None:
    for size, n in CASES:
        src, src_tensor = size - 1, n - 1

        async def on_rank(
            rank: int, n: int = n, src: int = src, src_tensor: int = src_tensor
        ) -> list[Any]:
            tensors = inputs(rank, n, "float32", kind)
            await dist.broadcast_multigpu(tensors, src, src_tensor=src_tensor)
            return flat(tensors)

        expected = flat(inputs(src, n, "float32", kind))[src_tensor]
        for found in await run_ranks(size, on_rank):
            for tensor in found:
                np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_all_gather_puts_element_j_of_rank_k_at_k_times_n_plus_j(kind: str) -> None:
    for size, n in CASES:

        async def on_rank(rank: int, size: int = size, n: int = n) -> list[list[Any]]:
            tensors = inputs(rank, n, "int32", kind)
            make = torch.zeros if kind == "torch" else np.zeros
            dtype = torch.int32 if kind == "torch" else np.int32
            outputs = [[make(2 * COUNT, dtype=dtype) for _ in range(size * n)] for _ in range(n)]
            await dist.all_gather_multigpu(outputs, tensors)
            return [flat(row) for row in outputs]

        for outputs in await run_ranks(size, on_rank):
            assert len(outputs) == n
            for row in outputs:
                for k in range(size):
                    theirs = flat(inputs(k, n, "int32", kind))
                    for j in range(n):
                        np.testing.assert_array_equal(row[k * n + j], theirs[j])


async def test_tensors_that_are_only_read_need_not_be_writable() -> None:
    async def on_rank(rank: int) -> list[list[float]]:
        given = [np.full(2, 10.0 * rank + i) for i in range(2)]
        for array in given if rank else given[:1]:
            array.flags.writeable = False
        await dist.reduce_multigpu(given, 0, dst_tensor=1)
        outputs = [[np.zeros(2) for _ in range(4)] for _ in range(2)]
        await dist.all_gather_multigpu(outputs, given)
        return [row.tolist() for row in np.array(outputs)[:, :, 0]]

    assert await run_ranks(2, on_rank) == [[[0.0, 22.0, 10.0, 11.0]] * 2] * 2


async def test_a_group_and_its_global_ranks() -> None:
    async def on_rank(rank: int) -> float:
        group = await dist.new_group([1, 2])
        tensors = [torch.full((2,), 10.0 * rank + i) for i in range(2)]
        if rank:
            await dist.broadcast_multigpu(tensors, 2, group, 1)
        return float(tensors[0][0])

    assert await run_ranks(3, on_rank) == [0.0, 21.0, 21.0]


async def test_an_operation_takes_its_number_at_the_call() -> None:
    async def on_rank(rank: int) -> list[float]:
        tensors, other = [torch.ones(2), torch.ones(2)], torch.full((1,), 5.0)
        first, second = dist.all_reduce_multigpu(tensors), dist.all_reduce(other)
        # Awaited in different orders.
        for work in (first, second) if rank else (second, first):
            await work
        return [float(tensors[1][0]), float(other[0])]

    assert await run_ranks(2, on_rank) == [[4.0, 10.0]] * 2


async def test_a_peers_error_fails_a_multigpu_operation() -> None:
    async def on_rank(rank: int) -> str:
        tensors = [torch.ones(2 + rank), torch.ones(2 + rank)]
        with pytest.raises(dist.CollectiveMismatchError) as caught:
            await dist.all_reduce_multigpu(tensors)
        return str(caught.value)

    for message in await run_ranks(2, on_rank):
        assert "all_reduce(4" not in message
        assert "2 x float32" in message
        assert "3 x float32" in message


async def test_an_operation_cancelled_on_one_rank_fails_on_the_others() -> None:
    async def on_rank(rank: int) -> str:
        work = dist.all_reduce_multigpu([torch.ones(2)] * 2) if rank < 2 else None
        if rank == 0:
            assert work is not None
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            return "cancelled"
        if rank == 1:
            assert work is not None
            with pytest.raises(dist.CollectiveCancelledError):
                await work
        return "heard"

    assert await run_ranks(3, on_rank) == ["cancelled", "heard", "heard"]


async def test_a_timeout_names_the_missing_ranks() -> None:
    async def on_rank(rank: int) -> tuple[int, ...]:
        if rank == 1:
            await dist.recv(src=0)
            return ()
        with pytest.raises(dist.CollectiveTimeoutError) as caught:
            await dist.all_reduce_multigpu([torch.ones(2), torch.ones(2)], timeout=0.05)
        await dist.send(torch.ones(1), 1)
        return tuple(caught.value.waiting_for)

    assert await run_ranks(2, on_rank) == [(1,), ()]


ENTRIES: list[Entry] = [
    (
        "no list",
        lambda h: dist.all_reduce_multigpu(t(4)),  # type: ignore[arg-type]
        TypeError,
        "tensor_list must be a list, not Tensor",
    ),
    (
        "an empty list",
        lambda h: dist.all_reduce_multigpu([]),
        InvalidUsageError,
        "tensor_list is empty; it must have a tensor for each device",
    ),
    (
        "no tensor",
        lambda h: dist.broadcast_multigpu([t(4), 5], 0),
        TypeError,
        r"tensor_list\[1\] must be a torch.Tensor or numpy.ndarray, not int",
    ),
    (
        "two lengths",
        lambda h: dist.all_reduce_multigpu(ts(4, 5)),
        InvalidUsageError,
        r"tensor_list\[1\] is 5 x float32 of torch, tensor_list\[0\] 4 x float32 of torch",
    ),
    (
        "two dtypes",
        lambda h: dist.all_reduce_multigpu([t(4), t(4, dtype=torch.int64)]),
        InvalidUsageError,
        r"tensor_list\[1\] is 4 x int64 of torch.* must be alike",
    ),
    (
        "two kinds",
        lambda h: dist.all_reduce_multigpu([t(4), np.ones(4, np.float32)]),
        InvalidUsageError,
        r"tensor_list\[1\] is 4 x float32 of numpy",
    ),
    (
        "one that cannot be written",
        lambda h: dist.all_reduce_multigpu([np.ones(4), read_only()]),
        InvalidUsageError,
        r"tensor_list\[1\] .*read-only",
    ),
    (
        "a target that cannot be written",
        lambda h: dist.reduce_multigpu([np.ones(4), read_only()], dist.get_rank(), dst_tensor=1),
        InvalidUsageError,
        r"tensor_list\[1\] .*read-only",
    ),
    (
        "src out of range",
        lambda h: dist.broadcast_multigpu(ts(4), 3),
        InvalidUsageError,
        "src 3 is out of range: the world has ranks 0 to 2",
    ),
    (
        "src_tensor out of range",
        lambda h: dist.broadcast_multigpu(ts(4, 4), 0, src_tensor=2),
        InvalidUsageError,
        "src_tensor 2 is out of range: tensor_list has entries 0 to 1",
    ),
    (
        "dst_tensor negative",
        lambda h: dist.reduce_multigpu(ts(4, 4), 0, dst_tensor=-1),
        InvalidUsageError,
        "dst_tensor -1 is out of range",
    ),
    (
        "dst_tensor of another type",
        lambda h: dist.reduce_multigpu(ts(4, 4), 0, dst_tensor="0"),  # type: ignore[arg-type]
        TypeError,
        "dst_tensor must be an int, not str",
    ),
    (
        "an op without meaning for the dtype",
        lambda h: dist.all_reduce_multigpu(ts(4, 4), dist.ReduceOp.BAND),
        TypeError,
        "BAND is not defined for float32",
    ),
    (
        "AVG of bool",
        lambda h: dist.reduce_multigpu([t(4, dtype=torch.bool)] * 2, 0, dist.ReduceOp.AVG),
        TypeError,
        "AVG is not defined for bool",
    ),
    (
        "all_gather: a list too few",
        lambda h: dist.all_gather_multigpu([ts(4, 4, 4, 4, 4, 4)], ts(4, 4)),
        InvalidUsageError,
        "output_tensor_lists has 1 lists; it must have 2, one for each of input_tensor_list",
    ),
    (
        "all_gather: a list too short",
        lambda h: dist.all_gather_multigpu([ts(4, 4)], ts(4)),
        InvalidUsageError,
        r"output_tensor_lists\[0\] has 2 tensors; it must have 3: 1 \(as input_tensor_list\)",
    ),
    (
        "all_gather: an output of another length",
        lambda h: dist.all_gather_multigpu([ts(4, 4, 5)], ts(4)),
        InvalidUsageError,
        "5 x float32 of torch",
    ),
]


@each(ENTRIES)
async def test_refused_at_once(
    call: Callable[[Any], object], error: type[Exception], words: str
) -> None:
    await check_refused(call, error, words)


async def test_a_multigpu_operation_completes_with_its_local_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On GPUs they run in the background: here a gate is their end."""
    gate, told = asyncio.Event(), tensor_lists.begin

    def begin(job: Callable[[], None], targets: Sequence[Any]) -> Callable[[], bool]:
        assert told(job, targets)()  # on the CPU, at once
        return gate.is_set

    async def body(rank: int) -> None:
        monkeypatch.setattr(tensor_lists, "begin", begin)
        tensors = [torch.ones(2), torch.ones(2)]
        rows = [[torch.zeros(2) for _ in range(4)] for _ in range(2)]
        works = [
            dist.all_reduce_multigpu(tensors),
            dist.reduce_multigpu(tensors, 0),
            dist.broadcast_multigpu(tensors, 0),
            dist.all_gather_multigpu(rows, tensors),
        ]
        await dist.barrier()
        assert not any(work.is_completed() for work in works)
        await dist.barrier()
        gate.set()
        await asyncio.gather(*works)

    await run_ranks(2, body)


async def test_between_the_ranks_goes_the_first_tensor_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With NCCL another one may be on another GPU, where the other ranks do not look for this one."""

    async def on_rank(rank: int) -> None:
        carried: list[Any] = []
        backend = engine_of().backend
        start = backend.start

        def noting(operation: Any, *rest: Any) -> Any:
            carried.append(operation.tensor)
            return start(operation, *rest)

        monkeypatch.setattr(backend, "start", noting)
        tensors = [torch.full((3,), 10.0 * rank + n) for n in range(2)]
        await dist.broadcast_multigpu(tensors, 1, src_tensor=1)
        assert [tensor.tolist() for tensor in tensors] == [[11.0] * 3] * 2
        assert carried.pop() is tensors[0]

    await run_ranks(2, on_rank)


def test_tensors_of_several_devices_come_together_on_the_first() -> None:
    here, elsewhere = torch.ones(2), torch.empty(2, device="meta")
    assert tensor_lists.together([here, here]) == [here, here]
    assert [tensor.device.type for tensor in tensor_lists.together([elsewhere, here])] == [
        "meta"
    ] * 2
