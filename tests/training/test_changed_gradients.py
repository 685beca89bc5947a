"""A gradient that changes between its arrival and synchronize() would get lost: it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiodist.errors import InvalidUsageError
from aiodist.testing import run_ranks
from aiodist.training import GradientReducer as AsyncReducer
from aiodist.training.sync import Compression, GradientReducer
from tests.training.replicas import LIMIT, fresh, loss_of, optimizer_of, parts

RunThreads = Callable[..., list[Any]]
Change = Callable[[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], None]

REFUSED = r"shape \(.*\) has changed since backward\(\) made it: call synchronize\(\)"


def clip(model: torch.nn.Module, *_: object) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.001)


def unscale(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    scaler.unscale_(optimizer)


def replace(model: torch.nn.Module, *_: object) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def zero(model: torch.nn.Module, *_: object) -> None:
    model.zero_grad()


def leave_alone(*_: object) -> None:
    pass


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("compression", [Compression.none, Compression.bf16])
@pytest.mark.parametrize("change", [clip, unscale, replace, zero, leave_alone])
def test_a_change_before_the_step_raises_unless_it_comes_after_synchronize(
    change: Change, compression: Compression, set_to_none: bool, run_threads: RunThreads
) -> None:
    def on_rank(rank: int) -> None:
        model = fresh()
        optimizer = optimizer_of(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT, compression=compression)
        reducer.attach(optimizer)

        def backward() -> None:
            optimizer.zero_grad(set_to_none=set_to_none)
            scaler.scale(loss_of(model, parts(rank, 2)[0], extra=True)).backward()

        backward()
        reducer.synchronize()
        change(model, optimizer, scaler)
        optimizer.step()
        if change is unscale:
            scaler.update()
        backward()
        change(model, optimizer, scaler)
        if change is leave_alone:
            optimizer.step()
        else:
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with pytest.raises(InvalidUsageError, match=REFUSED):
                optimizer.step()
            for parameter, value in zip(model.parameters(), before, strict=True):
                assert torch.equal(parameter, value)
        backward()
        optimizer.step()

    run_threads(2, on_rank)


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler_that_steps_without_synchronize_raises(
    fused: bool, run_threads: RunThreads
) -> None:
    def on_rank(rank: int) -> None:
        model = fresh()
        optimizer = torch.optim.Adam(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        reducer = GradientReducer(model.parameters())
        reducer.attach(optimizer)
        scaler.scale(loss_of(model, parts(rank, 2)[0], extra=True)).backward()
        with pytest.raises(InvalidUsageError, match=r"GradScaler"):
            scaler.step(optimizer)

    run_threads(2, on_rank)


def test_not_a_number_is_no_change(run_threads: RunThreads) -> None:
    def on_rank(rank: int) -> list[float]:
        weights = torch.nn.Parameter(torch.ones(3))
        reducer = GradientReducer([weights])
        (weights * torch.tensor([float("nan"), 1, 2])).sum().backward()
        reducer.synchronize()
        assert weights.grad is not None
        return weights.grad.tolist()[1:]

    assert run_threads(2, on_rank) == [[1, 2]] * 2


async def test_the_async_reducer_raises_too() -> None:
    async def on_rank(rank: int) -> None:
        model = fresh()
        reducer = AsyncReducer(model.parameters(), bucket_bytes=LIMIT)
        loss_of(model, parts(rank, 2)[0], extra=True).backward()
        clip(model)
        with pytest.raises(InvalidUsageError, match=REFUSED):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


async def test_a_parameter_that_needs_a_gradient_later_needs_a_new_reducer() -> None:
    async def on_rank(rank: int) -> None:
        model = fresh()
        first = next(model.parameters())
        first.requires_grad_(False)
        reducer = AsyncReducer(model.parameters())
        part = parts(rank, 2)[0]
        loss_of(model, part, extra=True).backward()
        await reducer.synchronize()
        first.requires_grad_(True)
        model.zero_grad()
        loss_of(model, part, extra=True).backward()
        with pytest.raises(
            InvalidUsageError, match="needed no gradient when this reducer was made"
        ):
            await reducer.synchronize()
        reducer.close()
        model.zero_grad()
        reducer = AsyncReducer(model.parameters())
        loss_of(model, part, extra=True).backward()
        assert first.grad is not None
        own = first.grad.clone()
        await reducer.synchronize()
        assert not torch.equal(first.grad, own)

    await run_ranks(2, on_rank)


def double(model: torch.nn.Module) -> None:
    model.double()


def half(model: torch.nn.Module) -> None:
    model.half()


def to_bfloat16(model: torch.nn.Module) -> None:
    model.to(torch.bfloat16)


def shorten(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data[:1]


@pytest.mark.parametrize("convert", [double, half, to_bfloat16, shorten])
@pytest.mark.parametrize("when", ["with gradients", "without gradients", "after backward"])
async def test_a_model_that_was_converted_needs_a_new_reducer(
    when: str, convert: Callable[[torch.nn.Module], None]
) -> None:
    async def on_rank(rank: int) -> None:
        model = torch.nn.Linear(1, 3)

        def backward() -> None:
            sum(each.sum() for each in model.parameters()).backward()  # type: ignore[union-attr]

        reducer = AsyncReducer(model.parameters())
        backward()
        await reducer.synchronize()
        if when == "without gradients":
            model.zero_grad()
        if when == "after backward":
            backward()
        convert(model)
        model.zero_grad()
        if when != "after backward":
            backward()
        with pytest.raises(
            InvalidUsageError, match=r"was torch.float32 of shape .* make one after"
        ):
            await reducer.synchronize()
        reducer.close()
        model.zero_grad()
        backward()
        await AsyncReducer(model.parameters()).synchronize()
        assert all(
            each.grad is not None and bool((each.grad == 1).all()) for each in model.parameters()
        )

    await run_ranks(2, on_rank)


async def test_data_that_is_set_in_a_gradient_leaves_later_steps_alone() -> None:
    async def on_rank(rank: int) -> list[float]:
        weights = torch.nn.Parameter(torch.ones(3))
        reducer = AsyncReducer([weights])
        (weights * torch.tensor([0.0, 1, 1])).sum().backward()
        await reducer.synchronize()
        assert weights.grad is not None
        weights.grad.data = weights.grad.data / 2  # clipped by hand
        weights.grad = None
        (weights * torch.tensor([0.0, 5, 7]) * (rank + 1)).sum().backward()
        await reducer.synchronize()
        return weights.grad.tolist()

    assert await run_ranks(2, on_rank) == [[0, 7.5, 10.5]] * 2
