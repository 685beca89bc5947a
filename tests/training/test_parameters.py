"""Parameters, buffers and states that rank 0 gives to all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch

from aiodist.errors import (
    CollectiveCancelledError,
    CollectiveError,
    CollectiveMismatchError,
    InvalidUsageError,
)
from aiodist.groups.world import current_world
from aiodist.testing import run_ranks
from aiodist.training import broadcast_optimizer_state, broadcast_parameters
from aiodist.training import sync as blocking
from tests.torch_backend.programs.ddp import Net
from tests.training.replicas import seeded


def made(rank: int) -> Net:
    """With numbers of this rank in parameters and buffers, of several dtypes."""
    with seeded(rank):
        model = Net(norm=True)
        model(torch.randn(4 + rank, 8))
    model.norm.num_batches_tracked += rank
    model.double_precision = torch.nn.Parameter(torch.full((3,), rank + 1.0).double())
    return model


def check(states: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert any(value.dtype is torch.int64 for value in expected.values())
    for state in states:
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], value) for name, value in expected.items())


async def test_a_module_has_its_parameters_and_buffers_broadcast() -> None:
    async def one(rank: int) -> dict[str, Any]:
        model = made(rank)
        await broadcast_parameters(model, src=1)
        return model.state_dict()

    check(await run_ranks(3, one), made(1).state_dict())


async def test_the_tensors_of_a_mapping_are_broadcast() -> None:
    async def one(rank: int) -> dict[str, Any]:
        state: dict[str, Any] = {**made(rank).state_dict(), "rank": rank}
        await broadcast_parameters(state)
        assert state.pop("rank") == rank
        return state

    check(await run_ranks(2, one), made(0).state_dict())


def test_training_keeps_parameters_equal_and_a_broadcast_makes_buffers_equal(
    run_threads: Callable[..., list[Any]],
) -> None:
    """BatchNorm's statistics follow the part of the batch that the rank has."""

    def one(rank: int) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
        blocking.broadcast_parameters(model)
        reducer = blocking.GradientReducer(model.parameters())
        with seeded(rank):
            part = torch.randn(4, 8)
        model(part).square().mean().backward()
        reducer.synchronize()
        torch.optim.SGD(model.parameters(), 0.1).step()
        trained = [parameter.detach().clone() for parameter in model.parameters()]
        own = [buffer.clone() for buffer in model.buffers()]
        blocking.broadcast_parameters(model)
        return model, trained, own

    (first, trained_first, own_first), (second, trained_second, own_second) = run_threads(2, one)
    assert all(map(torch.equal, trained_first, trained_second))
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    mean, variance, count = map(torch.equal, own_first, own_second)
    assert (mean, variance, count) == (False, False, True)


def test_the_blocking_api_does_the_same(run_threads: Callable[..., list[Any]]) -> None:
    def one(rank: int) -> dict[str, Any]:
        model = made(rank)
        blocking.broadcast_parameters(model)
        return model.state_dict()

    check(run_threads(2, one), made(0).state_dict())


def test_a_broadcast_that_failed_leaves_nothing_under_way(
    run_threads: Callable[..., list[Any]],
) -> None:
    def one(rank: int) -> None:
        tensors = [torch.ones((1 << 20) + rank), torch.ones(1 << 20)]
        # Rank 0's part may have ended before it hears of the other's.
        fails = pytest.raises(CollectiveMismatchError) if rank else suppress(CollectiveError)
        with fails:
            blocking.broadcast_parameters(tensors)
        assert not current_world().under_way()

    run_threads(2, one)


def test_a_tensor_that_cannot_be_broadcast_leaves_nothing_under_way(
    run_threads: Callable[..., list[Any]],
) -> None:
    has_failed = threading.Event()

    def one(rank: int) -> None:
        if rank == 0:
            try:
                with pytest.raises(InvalidUsageError):
                    blocking.broadcast_parameters(
                        [torch.ones(1 << 20), torch.ones(1, device="meta")]
                    )
                assert not current_world().under_way()
            finally:
                has_failed.set()
        else:
            has_failed.wait()
            with pytest.raises(CollectiveCancelledError):
                blocking.broadcast_parameters([torch.ones(1 << 20)])

    run_threads(2, one)


@pytest.mark.parametrize("rank_name", ["src", "root_rank"])
async def test_named_parameters_may_come_in_any_order(rank_name: str) -> None:
    async def one(rank: int) -> dict[str, Any]:
        model = made(rank)
        named = list(model.state_dict().items())
        await broadcast_parameters(reversed(named) if rank else named, **{rank_name: 1})
        return model.state_dict()

    check(await run_ranks(2, one), made(1).state_dict())


def test_parameters_are_named_or_not_but_not_both(run_threads: Callable[..., list[Any]]) -> None:
    def one(rank: int) -> None:
        mixed: list[Any] = [("one", torch.ones(1)), torch.ones(1)]
        with pytest.raises(InvalidUsageError, match="not both"):
            blocking.broadcast_parameters(mixed)
        with pytest.raises(InvalidUsageError, match="src is 0 and root_rank is 1"):
            blocking.broadcast_parameters([torch.ones(1)], 0, root_rank=1)

    run_threads(1, one)


def trained(rank: int, make: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer after ``rank`` steps, with options of this rank."""
    model = made(0)
    optimizer = make(model.parameters(), lr=0.1 + rank)
    for _ in range(rank):
        model(torch.ones(4, 8), True).sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9)]
)
def test_an_optimizer_gets_the_state_and_the_options_of_another(
    make: Callable[..., torch.optim.Optimizer], run_threads: Callable[..., list[Any]]
) -> None:
    def one(rank: int) -> dict[str, Any]:
        optimizer = trained(rank, make)
        blocking.broadcast_optimizer_state(optimizer, root_rank=1)
        return optimizer.state_dict()

    expected = trained(1, make).state_dict()
    for state in run_threads(3, one):
        assert state["param_groups"] == expected["param_groups"]
        assert state["state"].keys() == expected["state"].keys()
        for number, values in expected["state"].items():
            for name, value in values.items():
                assert torch.equal(torch.as_tensor(state["state"][number][name]), value)


async def test_a_coroutine_does_the_same_to_an_optimizer() -> None:
    async def one(rank: int) -> float:
        optimizer = trained(rank, torch.optim.Adam)
        await broadcast_optimizer_state(optimizer)
        return optimizer.param_groups[0]["lr"]

    assert await run_ranks(2, one) == [0.1, 0.1]
