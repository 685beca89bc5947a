"""Ranks that freeze different parameters would add up gradients of different ones: all are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.testing import run_ranks
from aiodist.training import GradientReducer as AsyncReducer
from aiodist.training.sync import Compression, GradientReducer
from tests.limits import scaled

RunThreads = Callable[..., list[Any]]

DIFFERENT = r"train different parameters: number 0 of shape \(2,\), number 1 of shape "


def parameters_without(frozen: int, sizes: list[int]) -> list[torch.Tensor]:
    """Return parameters with gradients. The one at ``frozen`` has none."""
    made: list[torch.Tensor] = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
    made[frozen].requires_grad_(False)
    for parameter in made:
        if parameter.requires_grad:
            parameter.sum().backward()
    return made


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("compression", [Compression.none, Compression.bf16])
def test_parameters_of_one_size_that_are_frozen_on_different_ranks_raise_on_all(
    size: int, compression: Compression, run_threads: RunThreads
) -> None:
    def on_rank(rank: int) -> None:
        several = parameters_without(min(rank, 1), [2, 2, 2])
        reducer = GradientReducer(several, compression=compression)
        for _ in range(2):
            with pytest.raises(InvalidUsageError, match=DIFFERENT):
                reducer.synchronize()
        reducer.close()
        for parameter in several:
            parameter.requires_grad_(True)
        GradientReducer(several).synchronize()

    run_threads(size, on_rank)


async def test_ranks_with_different_numbers_of_buckets_are_told_too() -> None:
    """Rank 0 has one bucket more than rank 1, and must not wait for it."""

    async def on_rank(rank: int) -> None:
        several = parameters_without(rank, [2, 2, 2])
        several[0].requires_grad_(False)
        reducer = AsyncReducer(several, bucket_bytes=8)
        with pytest.raises(InvalidUsageError, match=r"train different .* number 1 of shape \(2,\)"):
            await reducer.synchronize()

    async with asyncio.timeout(scaled(10)):
        await run_ranks(2, on_rank)


async def test_a_later_bucket_of_another_size_does_not_hide_the_names() -> None:
    async def on_rank(rank: int) -> None:
        reducer = AsyncReducer(parameters_without(rank, [2, 3, 2]), bucket_bytes=8)
        with pytest.raises(InvalidUsageError, match=DIFFERENT):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


FROZEN = [r"number 0 of shape \(2,\)", r"number 1 of shape \(3,\)"]


async def test_a_first_bucket_of_another_size_is_a_mismatch_that_names_what_this_rank_froze() -> (
    None
):
    async def on_rank(rank: int) -> None:
        reducer = AsyncReducer(parameters_without(rank, [2, 3, 2]))
        said = f"trains its 3 parameters without {FROZEN[rank]}: all ranks"
        with pytest.raises(CollectiveMismatchError, match=said):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


@pytest.mark.parametrize("size", [2, 3])
def test_the_blocking_api_names_what_this_rank_froze(size: int, run_threads: RunThreads) -> None:
    def on_rank(rank: int) -> None:
        several = parameters_without(min(rank, 1), [2, 3, 2])
        reducer = GradientReducer(several)
        with pytest.raises(CollectiveMismatchError, match=f"without {FROZEN[min(rank, 1)]}"):
            reducer.synchronize()
        reducer.close()
        for parameter in several:
            parameter.requires_grad_(True)
        GradientReducer(several).synchronize()

    run_threads(size, on_rank)


async def test_another_number_of_parameters_is_a_mismatch_that_says_how_many() -> None:
    async def on_rank(rank: int) -> None:
        several = [torch.nn.Parameter(torch.ones(2)) for _ in range(rank + 1)]
        reducer = AsyncReducer(several)
        with pytest.raises(CollectiveMismatchError, match=f"all of its {rank + 1} parameters"):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


@pytest.mark.parametrize(
    "options",
    [
        ({"bucket_bytes": 8}, {"bucket_bytes": 16}),
        ({"compression": Compression.none}, {"compression": Compression.bf16}),
    ],
)
async def test_a_mismatch_of_a_reducers_options_names_them(options: Any) -> None:
    async def on_rank(rank: int) -> None:
        several = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        reducer = AsyncReducer(several, **options[rank])
        with pytest.raises(
            CollectiveMismatchError, match="give the same bucket_bytes and compression"
        ):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


async def test_a_mismatch_gives_the_numbers_of_many_frozen_parameters() -> None:
    async def on_rank(rank: int) -> None:
        several = [torch.nn.Parameter(torch.ones(n)) for n in range(1, 21)]
        for frozen in (*several[:7], several[9], *several[12 + rank : 15]):
            frozen.requires_grad_(False)
        reducer = AsyncReducer(several)
        said = f"without numbers 0-6, 9, {('12-14', '13, 14')[rank]}: all ranks"
        with pytest.raises(CollectiveMismatchError, match=said):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


async def test_nothing_waits_for_later_buckets_behind_a_mismatch() -> None:
    """Rank 0 has one bucket more than rank 1, which makes no other collective."""
    told = asyncio.Event()

    async def on_rank(rank: int) -> None:
        reducer = AsyncReducer(parameters_without(2 * rank, [2, 2, 6]), bucket_bytes=16)
        with pytest.raises(CollectiveMismatchError):
            await reducer.synchronize()
        if rank == 0:
            told.set()
        await told.wait()

    async with asyncio.timeout(scaled(10)):
        await run_ranks(2, on_rank)


async def test_a_rank_without_data_is_told_too() -> None:
    async def train(rank: int) -> None:
        reducer = AsyncReducer(parameters_without(rank, [2, 2, 2]))
        async with reducer.join():
            if rank == 0:
                await reducer.synchronize()

    async def on_rank(rank: int) -> None:
        with pytest.raises(InvalidUsageError, match=DIFFERENT):
            await train(rank)

    await run_ranks(2, on_rank)


async def test_an_error_names_a_few_of_many_parameters() -> None:
    async def on_rank(rank: int) -> None:
        several = [torch.nn.Parameter(torch.ones(1)) for _ in range(40)]
        for parameter in several[rank::2]:
            parameter.requires_grad_(False)
        reducer = AsyncReducer(several)
        with pytest.raises(InvalidUsageError, match=r"number 4 of shape \(1,\) and 35 more needed"):
            await reducer.synchronize()

    await run_ranks(2, on_rank)
