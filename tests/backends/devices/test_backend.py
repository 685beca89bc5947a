"""Operations in memory that the ranks map of each other, over memfd segments in a GPU's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.backends.devices.backend import DeviceBackend
from aiodist.testing.in_process import run_ranks
from tests.backends.devices.memfd import MemfdMemory
from tests.engine.conftest import engine_of
from tests.operations.batch import complain, run_batch
from tests.operations.design import DTYPES, MOVING, NO_OP, NUMPY_ONLY, OPS, REDUCING, Case, may_be

HALF = 1 << 15


def install(memory: MemfdMemory, small: int = 0) -> None:
    """Have the default group use ``memory`` for tensors on the CPU, beyond ``small`` bytes."""
    group = engine_of()
    group.backend = DeviceBackend(group, lambda device: memory, "cpu", HALF, small)


@pytest.fixture
def memories() -> Iterator[Callable[..., MemfdMemory]]:
    made: list[MemfdMemory] = []

    def make(where: str = "here", process: str = "") -> MemfdMemory:
        made.append(MemfdMemory(where, process))
        return made[-1]

    yield make
    for memory in made:
        memory.close()


def cases(size: int) -> Iterator[Case]:
    layouts = ("contiguous", "strided", "transposed", "conjugate", "requires_grad", "zero_dim")
    for operations, ops in ((MOVING, (NO_OP,)), (REDUCING, OPS)):
        tails = [
            tail
            for tail in product(DTYPES, ops, layouts)
            # torch itself warns of complex32 where it has to copy one
            if tail[0] not in (*NUMPY_ONLY, "complex32")
            and may_be(Case(operations[0], size, "one", *tail[:2], "inproc", "torch", tail[2]))
        ]
        for number, (operation, length) in enumerate(
            product(operations, ("none", "one", "odd", "chunk+1") if size == 2 else ("odd",))
        ):
            for turn in range(1 if ops == (NO_OP,) else 3):
                dtype, op, layout = tails[(number * 3 + turn) * 97 % len(tails)]
                if layout == "zero_dim" and length != "one":
                    layout = "contiguous"
                yield Case(operation, size, length, dtype, op, "inproc", "torch", layout)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_operation(
    size: int, memories: Callable[..., MemfdMemory], scaled: Callable[[float], float]
) -> None:
    used: list[MemfdMemory] = []

    async def on_rank(number: int) -> list[str]:
        used.append(memories())
        install(used[-1])
        return await run_batch(number, list(cases(size)))

    wrong = await run_ranks(size, on_rank, timeout=scaled(30))
    complain([each for rank in wrong for each in rank])
    assert [len(memory.opened) for memory in used] == [size - 1] * size


async def test_collectives_of_little_data_go_through_the_host_where_all_ranks_know_the_length(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        memory = memories()
        install(memory, small=4 * 3000)
        for count, mapped in ((3000, 0), (3001, 1)):
            tensor = torch.full((count,), rank + 1, dtype=torch.int32)
            await dist.all_reduce(tensor)
            await dist.broadcast(tensor.add_(rank), 0)
            assert tensor.tolist() == [3] * count
            halves = [
                torch.empty(count // 2 + (r and count % 2), dtype=torch.int32) for r in (0, 1)
            ]
            await dist.all_gather(halves, torch.full_like(halves[rank], rank))
            assert [half.unique().tolist() for half in halves] == [[0], [1]]
            assert len(memory.opened) == mapped

    await run_ranks(2, body)


async def test_a_persistent_collective_is_checked_when_it_is_prepared(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        install(memories())
        with pytest.raises(TypeError, match="BAND is not defined for float32"):
            dist.all_reduce_init(torch.ones(4), dist.ReduceOp.BAND)
        with pytest.raises(TypeError, match="no arithmetic"):
            dist.all_reduce_init(torch.ones(4).to(torch.float8_e5m2))
        with pytest.raises(dist.InvalidUsageError, match="it must have 2"):
            dist.reduce_scatter_tensor_init(torch.ones(4), torch.ones(9))
        with pytest.raises(dist.InvalidUsageError, match="tensor is on meta"):
            dist.broadcast_init(torch.ones(4, device="meta"), 0)
        await dist.barrier_init().start()
        for dtype in (torch.float32, torch.uint16):  # the latter goes through the host
            tensor = torch.full((20_000,), rank + 1, dtype=dtype)
            persistent = dist.all_reduce_init(tensor)
            works = [persistent.start(), persistent.start()]
            for work in works:
                await work
            assert tensor.tolist() == [6] * 20_000

    await run_ranks(2, body)


async def test_operations_under_way_at_once_take_turns(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        install(memories())
        tensors = [torch.full((12_000,), rank + number) for number in range(20)]
        works = [dist.all_reduce(tensor) for tensor in tensors]
        for work in works:
            await work
        for number, tensor in enumerate(tensors):
            assert tensor.tolist() == [3 + 3 * number] * 12_000

    await run_ranks(3, body)


@pytest.mark.parametrize(
    "places",
    [
        [("one GPU", ""), ("one GPU", ""), ("another", "")],
        [("one GPU", "1"), ("one GPU", "2"), ("one GPU", "1")],
    ],
    ids=["on several devices", "in one process"],
)
async def test_ranks_that_cannot_share_go_through_the_host(
    places: list[tuple[str, str]], memories: Callable[..., MemfdMemory]
) -> None:
    async def body(rank: int) -> None:
        memory = memories(*places[rank])
        install(memory)
        await compare(rank)
        assert memory.opened == []

    await run_ranks(3, body)


async def test_a_rank_may_turn_to_another_device_and_back(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        memory = memories("one GPU")
        install(memory)
        for where, mapped in (("another", 0), ("one GPU", 2), ("another", 2), ("one GPU", 2)):
            if rank == 1:
                memory.where = where
            await compare(rank)
            assert len(memory.opened) == mapped

    await run_ranks(3, body)


async def compare(rank: int) -> None:
    """Some operations with the right results."""
    for _ in range(2):
        tensor = torch.full((3000,), rank)
        await dist.all_reduce(tensor)
        assert tensor.tolist() == [3] * 3000
        await dist.broadcast(tensor.fill_(rank), 2)
        assert tensor.tolist() == [2] * 3000
        places = [torch.zeros(number + 1) for number in range(3)] if rank == 1 else None
        await dist.gather(torch.full((rank + 1,), float(rank)), places, 1)
        if places is not None:
            assert [place.tolist() for place in places] == [[0], [1, 1], [2, 2, 2]]


class Refusing(MemfdMemory):
    """Fails at ``step`` as CUDA would; "mistake": what is opened is other memory than was meant."""

    step = "nothing"

    def allocate(self, nbytes: int) -> torch.Tensor:
        if self.step == "allocate":
            raise RuntimeError("out of memory")
        return super().allocate(nbytes)

    def open(self, offer: Sequence[Any]) -> torch.Tensor:
        if self.step == "open":
            raise RuntimeError("invalid resource handle")
        opened = super().open(offer)
        return torch.zeros_like(opened) if self.step == "mistake" else opened


@pytest.mark.parametrize("step", ["allocate", "open", "mistake"])
async def test_where_one_rank_cannot_map_all_go_through_the_host(step: str) -> None:
    memories = [Refusing() for _ in range(3)]
    memories[1].step = step

    async def body(rank: int) -> None:
        install(memories[rank])
        await compare(rank)
        assert [areas.of for areas in engine_of().backend._areas.values()] == [[]]

    await run_ranks(3, body)
    for memory in memories:
        memory.close()


async def test_a_failure_half_way_leaves_the_group_as_good_as_before() -> None:
    """In the first operation, which lays out the areas, and in a later one."""
    stuck: list[MemfdMemory] = []

    class Stuck(MemfdMemory):
        def run(self, job: Callable[[], None]) -> Callable[[], bool]:
            over = super().run(job)
            return (lambda: False) if self in stuck else over

    made = [Stuck() for _ in range(3)]

    async def on_rank(rank: int) -> None:
        install(made[rank])
        for _ in range(2):
            if rank == 1:
                stuck.append(made[1])
            with pytest.raises(dist.CollectiveTimeoutError):
                await dist.all_reduce(torch.ones(3000), timeout=0.2)
            if rank == 1:
                stuck.clear()
            await compare(rank)

    await run_ranks(3, on_rank)
    for memory in made:
        memory.close()


async def test_a_rank_whose_device_does_not_answer_says_so_where_the_others_would_wait() -> None:
    """Its own timeout is no word that it has no memory to share, after which all would go on."""

    class Stuck(MemfdMemory):
        def run(self, job: Callable[[], None]) -> Callable[[], bool]:
            super().run(job)
            return lambda: False

    made = [MemfdMemory(), Stuck(), MemfdMemory()]

    async def body(rank: int) -> None:
        install(made[rank])
        told = dist.CollectiveTimeoutError if rank == 1 else dist.CollectiveError
        with pytest.raises(told, match="rank 1"):
            await dist.all_reduce(torch.ones(3000), timeout=0.2 if rank == 1 else 60)

    await run_ranks(3, body)
    for memory in made:
        memory.close()


async def test_a_rank_that_is_given_more_than_it_expects_says_so(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        install(memories())
        places = [torch.zeros(4) for _ in range(2)] if rank == 0 else None
        with pytest.raises(dist.CollectiveMismatchError, match="20 bytes where 16 are expected"):
            await dist.gather(torch.ones(4 + rank), places, 0)
        await dist.barrier()

    await run_ranks(2, body)


async def test_invalid_arguments_are_refused_at_the_call(
    memories: Callable[..., MemfdMemory],
) -> None:
    async def body(rank: int) -> None:
        install(memories())
        for call, message in (
            (
                lambda: dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.zeros(3)),
                "own entry of tensor_list",
            ),
            (lambda: dist.all_reduce(torch.zeros(2, device="meta")), "is on meta"),
            (
                lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [2, 0], [0, 2]),
                "do not fit together",
            ),
            (
                lambda: dist.scatter(torch.zeros(2), [torch.zeros(2, dtype=torch.int8)] * 2, rank),
                "must be float32",
            ),
        ):
            with pytest.raises(dist.InvalidUsageError, match=message):
                call()
        await dist.barrier()

    await run_ranks(2, body)


PART = HALF // 4 * 3
"""Elements of int32 of each rank: several steps."""


@pytest.mark.parametrize("shift", [-PART, -PART // 3, 0, PART // 3, PART])
@pytest.mark.parametrize(
    "operation", ["all_gather", "reduce_scatter", "gather", "gather_single", "scatter"]
)
async def test_inputs_are_read_before_outputs_over_them_are_written(
    operation: str, shift: int, memories: Callable[..., MemfdMemory]
) -> None:
    n = PART

    async def body(rank: int) -> None:
        install(memories())
        whole = torch.arange(5 * n, dtype=torch.int32) * (rank + 1)
        blocks, one = whole[n : 4 * n], whole[n * (rank + 1) + shift :][:n]
        alone = [torch.arange(5 * n, dtype=torch.int32) * (r + 1) for r in range(3)]
        if operation in ("all_gather", "gather", "gather_single"):
            given = [each[n * (r + 1) + shift :][:n] for r, each in enumerate(alone)]
            if operation == "all_gather":
                await dist.all_gather_into_tensor(blocks, one)
            elif operation == "gather_single":
                await dist.gather_single(one, blocks, 0)
            else:
                await dist.gather(one, list(blocks.split(n)) if not rank else None, 0)
            if operation == "all_gather" or not rank:
                assert blocks.equal(torch.cat(given))
        elif operation == "reduce_scatter":
            await dist.reduce_scatter_tensor(one, blocks)
            assert one.equal(sum(alone)[n * (rank + 1) :][:n])  # type: ignore[index]  # it is a tensor
        else:
            await dist.scatter(one, list(blocks.split(n)) if not rank else None, 0)
            assert one.equal(alone[0][n * (rank + 1) :][:n])

    await run_ranks(3, body)
