"""Ranks with different numbers of batches: a rank without data stands in with zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aiodist
from aiodist.errors import InvalidUsageError
from aiodist.testing import run_ranks
from aiodist.training import GradientReducer as AsyncReducer
from aiodist.training.sync import GradientReducer
from tests.torch_backend.programs.ddp import Net, batches, own
from tests.training.replicas import LIMIT, check, fresh, loss_of, optimizer_of, seeded

RunThreads = Callable[..., list[Any]]


def steps_of(rank: int, size: int) -> int:
    """Rank 1 has no batch, and the others have more and more."""
    return 0 if rank == 1 else rank + 2


def data(rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    whole = batches(size, size + 1)[: steps_of(rank, size)]
    return [(own(x, rank), own(y, rank)) for x, y in whole]


def by_one_process(size: int, rounds: int, divide_by_all: bool) -> nn.Module:
    """Train on the batches of all ranks that still have one."""
    model = fresh()
    optimizer = optimizer_of(model)
    everything = [data(rank, size) for rank in range(size)]
    for _ in range(rounds):
        for step in range(max(len(each) for each in everything)):
            parts = [each[step] for each in everything if step < len(each)]
            optimizer.zero_grad()
            total = sum(loss_of(model, part, extra=True) for part in parts)
            (total / (size if divide_by_all else len(parts))).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("divide_by_all", [True, False])
def test_uneven_ranks_learn_what_one_process_learns(
    divide_by_all: bool, run_threads: RunThreads
) -> None:
    """Twice: the momentum of a rank that stopped early has to be that of the others, too."""

    def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        reducer.attach(optimizer)
        for _ in range(2):
            with reducer.join(divide_by_initial_world_size=divide_by_all):
                for part in data(rank, 3):
                    optimizer.zero_grad()
                    loss_of(model, part, extra=True).backward()
                    optimizer.step()
        return model

    check(run_threads(3, on_rank), by_one_process(3, 2, divide_by_all))


async def test_uneven_ranks_of_one_loop_learn_the_same_too() -> None:
    async def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        reducer = AsyncReducer(model.parameters(), bucket_bytes=LIMIT)
        for _ in range(2):
            async with reducer.join(optimizer):
                for part in data(rank, 3):
                    optimizer.zero_grad()
                    loss_of(model, part, extra=True).backward()
                    await reducer.synchronize()
                    optimizer.step()
        return model

    check(await run_ranks(3, on_rank), by_one_process(3, 2, True))


async def test_a_sum_is_not_divided_by_the_ranks_that_make_a_step() -> None:
    async def on_rank(rank: int) -> float:
        weight = nn.Parameter(torch.ones(1))
        reducer = AsyncReducer([weight], op=aiodist.ReduceOp.SUM)
        async with reducer.join(divide_by_initial_world_size=False):
            if rank == 0:
                (3 * weight).sum().backward()
                await reducer.synchronize()
        return 0.0 if weight.grad is None else weight.grad.item()

    assert await run_ranks(2, on_rank) == [3, 0]


async def test_even_ranks_broadcast_nothing_in_the_end() -> None:
    async def on_rank(rank: int) -> list[str]:
        model = fresh()
        reducer = AsyncReducer(model.parameters())
        async with reducer.join(optimizer_of(model)):
            loss_of(model, data(0, 2)[0], extra=True).backward()
            await reducer.synchronize()
        return [done.operation for done in aiodist.recent_operations()]

    # who makes the step, its bucket, who makes another, how many steps each has made
    assert await run_ranks(2, on_rank) == [["all_reduce"] * 4] * 2


def normalized(rank: int) -> Net:
    with seeded(rank):
        return Net(norm=True)


async def test_buffers_become_those_of_the_first_rank_that_makes_steps() -> None:
    async def on_rank(rank: int) -> tuple[dict[str, Any], torch.Tensor]:
        model = normalized(0)
        reducer = AsyncReducer(model.parameters(), buffers=model.buffers())
        seen = model.norm.running_mean.clone()
        async with reducer.join():
            for _ in range(3 if rank else 1):
                model(own(batches(3, 1)[0][0], rank), True).sum().backward()
                seen = model.norm.running_mean.clone()
                await reducer.synchronize()
        return {name: value.clone() for name, value in model.named_buffers()}, seen

    results = await run_ranks(3, on_rank)

    for buffers, _ in results:
        assert buffers["norm.num_batches_tracked"] == 2  # rank 0's stay for one step more
        for name, value in buffers.items():
            assert torch.equal(value, results[0][0][name])
    assert torch.equal(results[0][0]["norm.running_mean"], results[1][1])
    assert not torch.equal(results[0][0]["norm.running_mean"], results[2][1])


def test_buffers_are_those_of_the_first_rank_after_each_step(run_threads: RunThreads) -> None:
    def on_rank(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        model = normalized(0)
        reducer = GradientReducer(model.parameters(), buffers=model.buffers())
        model(own(batches(2, 1)[0][0], rank), True).sum().backward()
        mine = model.norm.running_mean.clone()
        reducer.synchronize()
        return mine, model.norm.running_mean.clone()

    (first, both), (second, other) = run_threads(2, on_rank)

    assert torch.equal(both, first)
    assert torch.equal(other, first)
    assert not torch.equal(second, first)


async def test_after_a_join_buffers_are_those_of_the_first_rank_again() -> None:
    async def on_rank(rank: int) -> float:
        parameter, buffer = torch.nn.Parameter(torch.zeros(1)), torch.zeros(1)
        reducer = AsyncReducer([parameter], buffers=[buffer])
        async with reducer.join():
            for _ in range(rank + 1):
                parameter.sum().backward()
                await reducer.synchronize()
        buffer.fill_(rank)
        parameter.sum().backward()
        await reducer.synchronize()
        return buffer.item()

    assert await run_ranks(2, on_rank) == [0.0, 0.0]


def test_an_exception_ends_the_join_on_its_rank_alone(run_threads: RunThreads) -> None:
    def on_rank(rank: int) -> None:
        reducer = GradientReducer(fresh().parameters())
        with pytest.raises(ZeroDivisionError), reducer.join():
            raise ZeroDivisionError
        with reducer.join():
            pass

    run_threads(2, on_rank)


async def test_a_join_within_a_join_is_refused() -> None:
    async def on_rank(rank: int) -> None:
        reducer = AsyncReducer(fresh().parameters())
        with pytest.raises(InvalidUsageError, match="in use"):
            async with reducer.join(), reducer.join():
                raise AssertionError("never here")

    await run_ranks(1, on_rank)
