"""Operations on tensors that the CPU cannot read, without a device: a thread plays its copy engine.

Only `CudaStaging` itself is left to the tests in ``tests/gpu``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.tensors import torch_memory
from aiodist.tensors.staging import Staging
from aiodist.testing.in_process import run_ranks
from tests.backends.copy_engine import Engine, copied_by_thread
from tests.operations.batch import check
from tests.operations.design import DTYPES, MOVING, NO_OP, NUMPY_ONLY, OPS, REDUCING, Case, may_be


@pytest.fixture
def engine() -> Iterator[Engine]:
    with copied_by_thread() as made:
        yield made


OF_HOST_TENSORS = {"recv_without_buffer", "all_gather_object", "broadcast_object_list"}
"""They make their tensors themselves, on the CPU."""


def cases(size: int) -> Iterator[Case]:
    layouts = ("contiguous", "strided", "transposed", "conjugate", "requires_grad", "zero_dim")
    moving = [name for name in MOVING if name not in OF_HOST_TENSORS]
    for operations, ops in ((moving, (NO_OP,)), (REDUCING, OPS)):
        tails = [
            tail
            for tail in product(DTYPES, ops, layouts)
            # torch itself warns of complex32 where it has to copy one
            if tail[0] not in (*NUMPY_ONLY, "complex32")
            and may_be(Case(operations[0], size, "one", *tail[:2], "inproc", "torch", tail[2]))
        ]
        lengths = ("none", "one", "odd", "eager+1") if size == 2 else ("odd",)
        for number, (operation, length) in enumerate(product(operations, lengths)):
            dtype, op, layout = tails[number * 97 % len(tails)]
            if layout == "zero_dim" and length != "one":
                layout = "contiguous"
            yield Case(operation, size, length, dtype, op, "inproc", "torch", layout)


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "inproc"), (2, "inproc"), (2, "shm"), (3, "shm")]
)
async def test_every_operation(
    size: int, transport: str, engine: Engine, scaled: Callable[[float], float]
) -> None:
    await check(size, list(cases(size)), scaled(30), transport)
    assert engine.asked


async def test_a_broadcast_loads_at_the_root_and_stores_elsewhere(engine: Engine) -> None:
    async def body(rank: int) -> None:
        tensor = torch.full((4,), float(rank))
        await dist.broadcast(tensor, 1)
        assert tensor.tolist() == [1, 1, 1, 1]

    await run_ranks(2, body)
    assert sorted(engine.asked) == [("load", 4), ("store", 4)]


async def test_an_error_of_the_staging_copy_is_the_operations_error(engine: Engine) -> None:
    async def body(rank: int) -> None:
        tensor = torch.zeros(4)
        work = dist.all_reduce(tensor)
        assert await work is None
        engine.stage = lambda tensor: Broken(tensor)  # type: ignore[method-assign]
        with pytest.raises(dist.DistError if rank else RuntimeError, match="fell off"):
            await dist.all_reduce(tensor)

    class Broken(Staging):
        def _allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(count, dtype=dtype)

        def _copy(self, target: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
            def is_over() -> bool:
                raise RuntimeError("the device fell off the bus")

            return is_over

    await run_ranks(1, body)


def test_tensors_of_other_layouts_and_overlaps_are_refused(engine: Engine) -> None:
    for tensor, message in (
        (torch.zeros(2, 1).expand(2, 3), "share memory"),
        (torch.zeros(2, 2).to_sparse(), "only dense tensors travel"),
    ):
        with pytest.raises(dist.InvalidUsageError, match=message):
            torch_memory.open_staged(tensor, "tensor", True, False, engine.stage)


class Gate:
    """Holds copies of tensors of some length back until it is opened."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.is_open = False
        gate, stage = self, engine.stage

        def held(tensor: torch.Tensor) -> Staging:
            staging = stage(tensor)
            if tensor.numel() == count:
                copy = staging._copy

                def gated(target: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
                    is_over = copy(target, source)
                    return lambda: gate.is_open and is_over()

                staging._copy = gated  # type: ignore[method-assign]
            return staging

        engine.stage = held  # type: ignore[method-assign]


async def test_a_send_lets_the_loop_go_on_and_keeps_its_place(engine: Engine) -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            gate = Gate(engine, 1000)
            first = dist.isend(torch.full((1000,), 1.0), 1)
            second = dist.isend(torch.full((3,), 2.0), 1)
            third = dist.send_object_list(["third"], 1)
            await dist.send(torch.full((3,), 4.0), 1, tag=6)  # another tag does not wait
            await dist.barrier()
            assert not first.is_completed()
            assert not second.is_completed()
            gate.is_open = True
            for work in (first, second, third):
                await work
        else:
            small, large = torch.zeros(3), torch.zeros(1000)
            early = dist.irecv(large, 0)
            assert await dist.recv(small, 0, tag=6) == 0
            assert small.tolist() == [4, 4, 4]
            await dist.barrier()
            assert await early == 0
            assert large.tolist() == [1] * 1000
            assert await dist.recv(small, 0) == 0
            assert small.tolist() == [2, 2, 2]
            objects = [None]
            await dist.recv_object_list(objects, 0)
            assert objects == ["third"]

    await run_ranks(2, body)


async def test_a_send_that_is_given_up_lets_the_next_go_in_its_turn(engine: Engine) -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            gate = Gate(engine, 1000)
            first = dist.isend(torch.full((1000,), 1.0), 1, tag=5)
            second = dist.isend(torch.full((3,), 2.0), 1, tag=5)
            third = dist.isend(torch.full((3,), 3.0), 1, tag=5)
            assert second.cancel()
            await asyncio.sleep(0)
            assert not third.is_completed()
            gate.is_open = True
            await first
            await third
            run_cached = dist.isend(torch.full((3,), 4.0), 1, tag=5)
            await run_cached
        else:
            large, small = torch.zeros(1000), torch.zeros(3)
            await dist.recv(large, 0, tag=5)
            for value in (3, 4):
                await dist.recv(small, 0, tag=5)
                assert small.tolist() == [value] * 3

    await run_ranks(2, body)


async def test_a_receive_lets_the_loop_go_on_and_knows_its_sender(engine: Engine) -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            gate = Gate(engine, 1000)
            tensor = torch.zeros(1000)
            receiving = dist.irecv(tensor, tag=5)
            await dist.barrier()  # the message is there
            assert not receiving.is_completed()
            gate.is_open = True
            assert await receiving == 1
            assert receiving.source_rank() == 1
            assert tensor.tolist() == [7] * 1000
        else:
            await dist.send(np.full(1000, 7, np.float32), 0, tag=5)
            await dist.barrier()

    await run_ranks(2, body)
