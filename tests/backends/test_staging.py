"""Operations on tensors that the CPU cannot read, without a device: a thread plays its copy engine.

The copies are real and happen in the background, one after the other, as a stream's do. Only
`CudaStaging` itself is left to the tests in ``tests/gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.backends import turns
from aiodist.tensors import torch_memory
from aiodist.tensors.staging import Staging
from aiodist.testing.in_process import run_ranks
from tests.operations.design import DTYPES, MOVING, NO_OP, NUMPY_ONLY, OPS, REDUCING, Case, may_be
from tests.operations.programs import PROGRAMS, Rank


class Engine:
    """Copies in the background, and what it has been asked for."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.asked: list[tuple[str, int]] = []

    def stage(self, tensor: torch.Tensor) -> Staging:
        engine = self

        class Threaded(Staging):
            def load(self, start: int, stop: int) -> Callable[[], bool]:
                engine.asked.append(("load", stop - start))
                return super().load(start, stop)

            def store(self, start: int, stop: int) -> Callable[[], bool]:
                engine.asked.append(("store", stop - start))
                return super().store(start, stop)

            def _allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
                raw = torch.full((count * dtype.itemsize,), 0xA5, dtype=torch.uint8)
                return raw.view(dtype)

            def _copy(self, target: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
                copying: Future[None] = engine.pool.submit(torch_memory.assign, target, source)

                def is_over() -> bool:
                    return copying.done() and copying.result() is None

                return is_over

        return Threaded(tensor)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with ThreadPoolExecutor(1, thread_name_prefix="copies") as pool:
        made = Engine(pool)

        def open_tensor(tensor: Any, name: str, writable: bool, load: bool) -> Any:
            return torch_memory.open_staged(tensor, name, writable, load, made.stage)

        monkeypatch.setattr(torch_memory, "open_tensor", open_tensor)
        monkeypatch.setattr(turns, "PART", 1 << 16)
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


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_operation(size: int, engine: Engine, scaled: Callable[[float], float]) -> None:
    batch = list(cases(size))
    wrong: list[str] = []

    async def on_rank(number: int) -> None:
        for case in batch:
            rank = Rank(case, number)
            try:
                await PROGRAMS[case.operation](rank)
            except Exception as error:
                error.add_note(f"{case}: rank {number}")
                raise
            wrong.extend(rank.wrong())

    await run_ranks(size, on_rank, timeout=scaled(30))
    assert not wrong, "\n".join([f"{len(wrong)} things are wrong:", *wrong[:30]])
    assert engine.asked


async def test_the_next_part_is_on_its_way_while_one_is_in_use(engine: Engine) -> None:
    part = (1 << 16) // 4

    async def body(rank: int) -> None:
        tensor = torch.full((3 * part + 5,), float(rank))
        await dist.all_reduce(tensor)
        assert tensor.tolist() == [0.0] * (3 * part + 5)

    await run_ranks(1, body)
    assert engine.asked == [
        ("load", part),
        ("load", part),
        ("store", part),
        ("load", part),
        ("store", part),
        ("load", 5),
        ("store", part),
        ("store", 5),
    ]


async def test_a_broadcast_loads_at_the_root_and_stores_elsewhere(engine: Engine) -> None:
    async def body(rank: int) -> None:
        tensor = torch.full((4,), float(rank))
        await dist.broadcast(tensor, 1)
        assert tensor.tolist() == [1, 1, 1, 1]

    await run_ranks(2, body)
    assert sorted(engine.asked) == [("load", 4), ("store", 4)]


async def test_what_the_copy_raises_is_the_operations_error(engine: Engine) -> None:
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
