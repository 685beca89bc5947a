"""Parameters, buffers and states that rank 0 gives to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aiodist.testing import run_ranks
from aiodist.training import broadcast_parameters
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


def test_the_blocking_door_does_the_same(run_threads: Callable[..., list[Any]]) -> None:
    def one(rank: int) -> dict[str, Any]:
        model = made(rank)
        blocking.broadcast_parameters(model)
        return model.state_dict()

    check(run_threads(2, one), made(0).state_dict())
