"""Memory that the matrix does not have: shared by elements, read-only, several parts of one."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks

SIZE = 3
ROOT = 1
Input = Callable[[int, int], Any]


def expanded(value: int, count: int) -> torch.Tensor:
    return torch.tensor([float(value)]).expand(count)


def broadcast_array(value: int, count: int) -> np.ndarray:
    return np.broadcast_to(np.float32(value), (count,))


def read_only(value: int, count: int) -> np.ndarray:
    array = np.full(count, value, np.float32)
    array.flags.writeable = False
    return array


def blank(count: int) -> torch.Tensor:
    return torch.zeros(count)


def blanks() -> list[torch.Tensor]:
    return [blank(4) for _ in range(SIZE)]


def holds(tensor: torch.Tensor, *values: int) -> None:
    """Whether its elements are ``values``, equally often."""
    each = tensor.numel() // len(values)
    assert tensor.flatten().tolist() == [value for value in values for _ in range(each)]


async def sent(rank: int, make: Input) -> None:
    if rank != ROOT:
        await dist.send(make(rank, 4), ROOT)
        return
    for _ in range(SIZE - 1):
        into = blank(4)
        holds(into, await dist.recv(into))


async def broadcast(rank: int, make: Input) -> None:
    tensor = make(5, 4) if rank == ROOT else blank(4)
    await dist.broadcast(tensor, ROOT)
    if rank != ROOT:
        holds(tensor, 5)


async def reduced(rank: int, make: Input) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.premul_sum(1.0), dist.ReduceOp.AVG):
        tensor = torch.ones(4) if rank == ROOT else make(rank, 4)
        await dist.reduce(tensor, ROOT, op)
        if rank == ROOT:
            holds(tensor, 3 if op.name != "AVG" else 1)


async def all_gathered(rank: int, make: Input) -> None:
    places = blanks()
    await dist.all_gather(places, make(rank, 4))
    for number, place in enumerate(places):
        holds(place, number)
    output = blank(12)
    await dist.all_gather_into_tensor(output, make(rank, 4))
    holds(output, 0, 1, 2)
    several = [[blank(4), blank(2)] for _ in range(SIZE)]
    await dist.all_gather_coalesced(several, [make(rank, 4), make(rank + 10, 2)])
    for number, (first, second) in enumerate(several):
        holds(first, number)
        holds(second, number + 10)


async def gathered(rank: int, make: Input) -> None:
    places = blanks() if rank == ROOT else None
    await dist.gather(make(rank, 4), places, ROOT)
    for number, place in enumerate(places or []):
        holds(place, number)
    output = blank(12)
    await dist.gather_single(make(rank, 4), output, ROOT)
    holds(output, *((0, 1, 2) if rank == ROOT else (blank(1)[0],)))


async def scattered(rank: int, make: Input) -> None:
    tensor = blank(4)
    parts = [make(number, 4) for number in range(SIZE)] if rank == ROOT else None
    await dist.scatter(tensor, parts, ROOT)
    holds(tensor, rank)


async def reduce_scattered(rank: int, make: Input) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.premul_sum(1.0)):
        tensor = blank(4)
        await dist.reduce_scatter(tensor, [make(number, 4) for number in range(SIZE)], op)
        holds(tensor, 3 * rank)
        await dist.reduce_scatter_tensor(tensor, make(2, 12), op)
        holds(tensor, 6)


async def exchanged(rank: int, make: Input) -> None:
    places = blanks()
    await dist.all_to_all(places, [make(10 * rank + number, 4) for number in range(SIZE)])
    for number, place in enumerate(places):
        holds(place, 10 * number + rank)
    output = blank(12)
    await dist.all_to_all_single(output, make(rank, 12))
    holds(output, 0, 1, 2)


@pytest.mark.parametrize("make", [expanded, broadcast_array, read_only])
@pytest.mark.parametrize(
    "program",
    [
        sent,
        broadcast,
        reduced,
        all_gathered,
        gathered,
        scattered,
        reduce_scattered,
        exchanged,
    ],
)
async def test_inputs_may_be_expanded_or_read_only(
    program: Callable[[int, Input], Awaitable[None]], make: Input
) -> None:
    await run_ranks(SIZE, lambda rank: program(rank, make), timeout=20)


CUTS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "rows": lambda big: list(big[1:4].unbind(0)),
    "columns": lambda big: list(big[:, 1:4].unbind(1)),
    "chunks": lambda big: list(big.flatten()[2:17].chunk(3)),
}
"""Three parts of one 5 x 5 tensor."""


@pytest.mark.parametrize("cut", CUTS)
async def test_lists_of_slices_of_one_tensor(cut: str) -> None:
    """Every operation on lists fills the parts, reads the parts, and touches nothing between."""

    def parts_of(filler: float, values: list[float]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        big = torch.full((5, 5), filler)
        parts = CUTS[cut](big)
        for part, value in zip(parts, values, strict=True):
            part.fill_(value)
        return big, parts

    def same(big: torch.Tensor, values: list[float]) -> None:
        assert torch.equal(big, parts_of(-1.0, values)[0])

    async def on_rank(rank: int) -> None:
        count = CUTS[cut](torch.zeros(5, 5))[0].numel()
        one = torch.full((count,), float(rank))

        big, parts = parts_of(-1.0, [-1.0] * 3)
        await dist.all_gather(parts, one)
        same(big, [0, 1, 2])

        big, parts = parts_of(-1.0, [-1.0] * 3)
        await dist.gather(one, parts if rank == ROOT else None, ROOT)
        same(big, [0, 1, 2] if rank == ROOT else [-1.0] * 3)

        given = [10.0 * rank, 10.0 * rank + 1, 10.0 * rank + 2]
        big, parts = parts_of(-1.0, given)
        await dist.scatter(one, parts if rank == ROOT else None, ROOT)
        same(big, given)
        holds(one, 10 + rank)

        await dist.reduce_scatter(one, parts)
        same(big, given)
        holds(one, 30 + 3 * rank)

        output, places = parts_of(-1.0, [-1.0] * 3)
        await dist.all_to_all(places, parts)
        same(big, given)
        same(output, [rank, 10 + rank, 20 + rank])

        await dist.all_reduce_coalesced(parts)
        same(big, [30, 33, 36])

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_input_and_output_may_be_the_same_memory() -> None:
    """As in torch: this rank's place in what is gathered, its part of what is reduced."""

    async def on_rank(rank: int) -> None:
        for count in (5, 100_000):
            places = [torch.full((count,), float(rank)) for _ in range(SIZE)]
            await dist.all_gather(places, places[rank])
            assert [place[-1].item() for place in places] == [0, 1, 2]

            whole = torch.full((SIZE * count,), float(rank))
            await dist.all_gather_into_tensor(whole, whole[rank * count : (rank + 1) * count])
            assert whole[count - 1 :: count].tolist() == [0, 1, 2]

            part = whole[rank * count : (rank + 1) * count]
            await dist.reduce_scatter_tensor(part, whole)
            assert part[0].item() == part[-1].item() == 3 * rank

            parts = [torch.full((count,), float(number)) for number in range(SIZE)]
            await dist.reduce_scatter(parts[rank], parts)
            assert parts[rank][0].item() == parts[rank][-1].item() == 3 * rank

            await dist.gather(places[rank], places if rank == ROOT else None, ROOT)
            assert [place[-1].item() for place in places] == [0, 1, 2]
            whole = torch.full((SIZE * count,), float(rank))
            await dist.gather_single(whole[rank * count : (rank + 1) * count], whole, ROOT)
            expected = [0, 1, 2] if rank == ROOT else [rank] * SIZE
            assert whole[count - 1 :: count].tolist() == expected
            await dist.scatter(places[rank], places if rank == ROOT else None, ROOT)
            assert places[rank][0].item() == rank

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_gather_and_gather_single_are_one_operation() -> None:
    async def on_rank(rank: int) -> None:
        own = torch.full((4,), float(rank))
        if rank == ROOT:
            whole, places = blank(12), blanks()
            await dist.gather_single(own, whole, ROOT)
            holds(whole, 0, 1, 2)
            await dist.gather(own, places, ROOT)
            holds(torch.cat(places), 0, 1, 2)
        else:
            await dist.gather(own, None, ROOT)
            await dist.gather_single(own, None, ROOT)

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_one_tensor_in_a_coalesced_operation() -> None:
    async def on_rank(rank: int) -> None:
        columns = torch.full((4, 2), float(rank))
        for tensor in (torch.full((4,), float(rank)), columns[:, 0]):
            await dist.all_reduce_coalesced([tensor])
            holds(tensor, 3)
        places = [[blank(4)] for _ in range(SIZE)]
        await dist.all_gather_coalesced(places, [columns[:, 1]])
        for number, (place,) in enumerate(places):
            holds(place, number)

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_leaves_that_require_grad_stay_leaves() -> None:
    async def on_rank(rank: int) -> None:
        for tensor in (
            torch.full((4,), float(rank), requires_grad=True),
            torch.nn.Parameter(torch.full((4,), float(rank))),
        ):
            await dist.all_reduce(tensor)
            holds(tensor.detach(), 3)
            assert tensor.is_leaf
            assert tensor.requires_grad
            assert tensor.grad_fn is None
            (2 * tensor).sum().backward()
            assert tensor.grad is not None
            await dist.all_reduce(tensor.grad)
            holds(tensor.grad, 6)

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_a_result_inside_a_graph_keeps_its_history() -> None:
    """A tensor in the middle of a graph: its values travel, its history stays."""

    async def on_rank(rank: int) -> None:
        leaf = torch.full((4,), float(rank), requires_grad=True)
        middle = leaf * 2
        await dist.all_reduce(middle)
        holds(middle.detach(), 6)
        assert middle.grad_fn is not None

    await run_ranks(SIZE, on_rank, timeout=20)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0, 3)])
async def test_complex32_does_not_warn_of_being_experimental(shape: tuple[int, ...]) -> None:
    """Whatever way it is laid out; torch's own copy of such a tensor does."""

    async def on_rank(rank: int) -> None:
        pairs = torch.full((*shape, 2), rank + 1.0, dtype=torch.half)
        tensor = torch.view_as_complex(pairs)
        axes = tuple(reversed(range(tensor.dim())))
        for view in (tensor, tensor.permute(axes), tensor.conj(), tensor.permute(axes).conj()):
            pairs.fill_(rank + 1.0)
            await dist.all_reduce(view)
            assert (pairs == 6).all()
            await dist.all_gather([torch.empty_like(pairs) for _ in range(SIZE)], pairs)

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await run_ranks(SIZE, on_rank, timeout=20)
    finally:
        torch.set_warn_always(always)


async def test_torch_and_numpy_meet_in_every_list() -> None:
    async def on_rank(rank: int) -> None:
        mine: Any = torch.full((2,), rank) if rank else np.full(2, rank)
        places: list[Any] = [np.zeros(2, np.int64), torch.zeros(1, 2, dtype=torch.int64)]
        await dist.all_gather(places, mine)
        assert places[0].tolist() == [0, 0]
        assert places[1].tolist() == [[1, 1]]
        output = torch.zeros(4, dtype=torch.int64)
        await dist.all_gather_into_tensor(output, mine)
        assert output.tolist() == [0, 0, 1, 1]

    await run_ranks(2, on_rank, timeout=20)


async def test_nothing_is_written_to_an_empty_tensor_that_stands_twice() -> None:
    async def main(rank: int) -> None:
        empty, own = blank(0), torch.full((4,), float(rank))
        outputs = [empty, empty, empty]
        outputs[rank] = into = blank(4)
        inputs = [empty, empty, empty]
        inputs[rank] = own
        await dist.all_to_all(outputs, inputs)
        holds(into, rank)

    await run_ranks(SIZE, main)
