"""Every operation over torch's Gloo against numpy, and what it refuses."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.deadline import Deadline
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of
from tests.operations.batch import check
from tests.operations.design import (
    COMPLEX,
    DTYPES,
    LAYOUTS,
    MOVING,
    NO_OP,
    NUMPY_ONLY,
    OPS,
    REDUCING,
    Case,
    may_be,
)

NUMBERS = {
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    *COMPLEX,
}
LENGTHS = ("none", "one", "odd", "eager+1")


def possible(case: Case) -> bool:
    if not may_be(case) or case.dtype in NUMPY_ONLY:
        return False
    if case.operation not in REDUCING:
        return True
    if case.dtype in COMPLEX and case.op not in ("SUM", "AVG", "PREMUL_SUM"):
        return False
    return case.dtype in NUMBERS


def cases(size: int) -> Iterator[Case]:
    """Every operation at every length; dtype, reduction, kind and layout take turns."""
    for operations, ops in ((MOVING, (NO_OP,)), (REDUCING, OPS)):
        tails = [
            tail
            for tail in product(DTYPES, ops, ("torch", "numpy", "mixed"), LAYOUTS)
            if possible(Case(operations[0], size, "one", *tail[:2], "inproc", *tail[2:]))
        ]
        for number, (operation, length) in enumerate(product(operations, LENGTHS)):
            for turn in range(1 if ops == (NO_OP,) else 4):
                dtype, op, kind, layout = tails[(number * 8 + turn) * 97 % len(tails)]
                if layout == "zero_dim" and length != "one":
                    layout = "contiguous"
                yield Case(operation, size, length, dtype, op, "inproc", kind, layout)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.extended)])
async def test_every_operation(size: int, scaled: Callable[[float], float]) -> None:
    await check(size, list(cases(size)), scaled(30), backend="torch:gloo")


async def test_barrier_and_objects() -> None:
    async def body(rank: int) -> Any:
        assert dist.get_backend() == "torch:gloo"
        await dist.barrier()
        objects: list[Any] = [None, None]
        if rank == 0:
            await dist.send_object_list([1, "two"], 1)
        else:
            assert await dist.recv_object_list(objects) == 0
            assert objects == [1, "two"]
        mine: list[Any] = [None]
        await dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else None, 0)
        gathered: list[Any] | None = [None, None] if rank == 1 else None
        await dist.gather_object(mine[0], gathered, 1)
        return gathered

    assert await run_ranks(2, body, backend="torch:gloo") == [None, ["a", "b"]]


async def test_a_barrier_waits_for_all() -> None:
    entered: list[int] = []

    async def body(rank: int) -> None:
        if rank == 2:
            await dist.recv_object_list([None], 0)
        entered.append(rank)
        waiting = dist.barrier()
        if rank == 0:
            await dist.send_object_list(["go"], 2)
        await waiting
        assert len(entered) == 3

    await run_ranks(3, body, backend="torch:gloo")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dist.all_gather([torch.zeros(2), torch.zeros(3)], torch.zeros(2)),
            "own entry of tensor_list has 3 elements",
        ),
        (lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int16)), "cannot reduce int16"),
        (
            lambda: dist.all_reduce(torch.zeros(2, dtype=torch.complex64), "PRODUCT"),
            "cannot reduce complex64 by PRODUCT",
        ),
        (lambda: dist.all_reduce(np.zeros(2, np.longdouble)), "cannot reduce longdouble"),
        (lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2)), "it must have 2"),
        (lambda: dist.all_reduce(torch.zeros(2, device="meta")), "is on meta"),
        (lambda: dist.broadcast(torch.zeros(2, 1).expand(2, 3), 0), "share memory"),
        (
            lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [2, 0], [0, 2]),
            "do not fit together",
        ),
    ],
)
async def test_invalid_arguments_are_refused_at_the_call(
    call: Callable[[], Any], message: str
) -> None:
    async def body(rank: int) -> None:
        if rank == 1:  # of a broadcast not the root
            with pytest.raises(dist.InvalidUsageError, match=message):
                call()
        await dist.barrier()  # the group is as good as before

    await run_ranks(2, body, backend="torch:gloo")


@pytest.mark.parametrize(
    "call",
    [
        lambda rank: dist.gather(
            torch.ones(4 + rank), [torch.zeros(4) for _ in range(3)] if rank == 0 else None, 0
        ),
        lambda rank: dist.gather_single(torch.ones(5 if rank == 1 else 4), torch.ones(12), 0),
        lambda rank: dist.scatter(
            torch.ones(4), [torch.zeros(4 + other) for other in range(3)] if rank == 0 else None, 0
        ),
        lambda rank: dist.all_to_all_single(
            torch.ones(3), torch.ones(4 if rank == 1 else 3), None, [1, 1, 2] if rank == 1 else None
        ),
        lambda rank: dist.all_gather(
            [torch.zeros(2), torch.zeros(1), torch.zeros(3 if rank else 4)],
            torch.zeros([2, 1, 3][rank]),
        ),
        lambda rank: dist.reduce_scatter(
            torch.zeros([1, 2, 4][rank]),
            [torch.zeros(1), torch.zeros(2 if rank else 4), torch.zeros(4 if rank else 2)],
        ),
    ],
    ids=["gather", "gather_single", "scatter", "all_to_all", "all_gather", "reduce_scatter"],
)
async def test_ranks_that_disagree_about_lengths_all_raise(call: Callable[[int], Any]) -> None:
    """torch itself would hang, or mix up memory. As it has not begun, the group goes on."""

    async def body(rank: int) -> None:
        with pytest.raises(dist.CollectiveMismatchError, match="ranks disagree"):
            await call(rank)
        tensor = torch.ones(4)
        await dist.all_reduce(tensor)
        assert tensor.tolist() == [3] * 4

    await run_ranks(3, body, backend="torch:gloo")


async def test_operations_after_a_comparison_of_lengths_keep_their_order() -> None:
    async def body(rank: int) -> None:
        for turn in range(20):
            places = [torch.zeros(other + 1) for other in range(3)] if rank == 1 else None
            tensor = torch.full((5,), float(turn))
            works = [
                dist.gather(torch.full((rank + 1,), float(turn)), places, 1),
                dist.all_reduce(tensor),
            ]
            for work in reversed(works):
                await work
            assert tensor.tolist() == [3.0 * turn] * 5
            if places is not None:
                assert [p.tolist() for p in places] == [[turn] * n for n in (1, 2, 3)]

    await run_ranks(3, body, backend="torch:gloo")


async def test_a_message_passes_a_comparison_of_lengths_that_waits() -> None:
    """The other rank takes the message before it enters the collectives."""

    async def body(rank: int) -> None:
        places = [torch.zeros(1), torch.zeros(2)] if rank == 0 else None
        message, summed = torch.full((3,), 7.0), torch.full((1,), rank + 1.0)

        def collectives() -> list[dist.Work[None]]:
            gathering = dist.gather(torch.full((rank + 1,), 5.0), places, 0)
            return [gathering, dist.all_reduce(summed)]

        if rank == 0:
            works = collectives()
            await dist.send(message, 1)
        else:
            await dist.recv(message.zero_(), 0)
            works = collectives()
        for work in works:
            await work
        assert message.tolist() == [7.0] * 3
        assert summed.tolist() == [3.0]
        if places is not None:
            assert [place.tolist() for place in places] == [[5.0], [5.0, 5.0]]

    await run_ranks(2, body, timeout=20, backend="torch:gloo")


async def test_floats_have_no_bits() -> None:
    async def body(rank: int) -> None:
        with pytest.raises(TypeError, match="BAND is not defined for float32"):
            dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND)

    await run_ranks(1, body, backend="torch:gloo")


async def test_groups_of_other_ranks_and_backends() -> None:
    async def body(rank: int) -> None:
        odd = await dist.new_group([1, 2], backend="torch:gloo")
        if rank:
            tensor = torch.full((3,), float(rank))
            await dist.broadcast(tensor, 2, odd)
            assert tensor.tolist() == [2, 2, 2]
            other = 3 - rank
            into = torch.zeros(1)
            receiving = dist.irecv(into, other, odd)
            await dist.send(torch.tensor([float(rank)]), other, odd)
            assert await receiving == other
            assert into.item() == other
            await dist.destroy_process_group(odd)
        await dist.barrier()

    await run_ranks(3, body)


async def test_torch_may_ask_its_store_long_after_the_group_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As NCCL does: nothing is opened before it is used.
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")

    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        await engine_of(group).backend.ready(Deadline(10))
        gc.collect()
        tensor = torch.ones(3)
        await dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2, 2, 2]

    await run_ranks(2, body)


@pytest.mark.parametrize("with_buffer", [True, False])
async def test_a_receive_follows_the_earlier_work_of_its_caller_on_the_device(
    with_buffer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            followed: list[str] = []
            stream = ["the caller's"]
            kind = engine_of().backend._messages.kind

            def here(device: torch.device) -> Any:
                return functools.partial(follow, followed, stream[0])

            def callers(device: torch.device) -> Any:
                return functools.partial(on, stream, stream[0])

            monkeypatch.setattr(kind, "here", here)
            monkeypatch.setattr(kind, "callers", callers)
            receiving = dist.irecv(torch.zeros(3), 1) if with_buffer else dist.recv()
            stream[0] = "another"
            await dist.send_object_list(["go"], 1)
            await receiving
            assert followed == ["the caller's"]
        else:
            await dist.recv_object_list([None], 0)
            await dist.send(torch.ones(3), 0)
        await dist.barrier()

    await run_ranks(2, body, backend="torch:gloo")


@contextlib.contextmanager
def follow(followed: list[str], name: str, lanes: Any) -> Iterator[None]:
    followed.append(name)
    yield


@contextlib.contextmanager
def on(stream: list[str], name: str) -> Iterator[None]:
    before, stream[0] = stream[0], name
    yield
    stream[0] = before
