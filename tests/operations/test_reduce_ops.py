"""The ways to say what to reduce with: ours, torch's, the old ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed

import aiodist as dist
from aiodist.testing.in_process import run_ranks

EXPECTED = {  # of 6 and 10
    "SUM": 16,
    "AVG": 8,
    "PRODUCT": 60,
    "MIN": 6,
    "MAX": 10,
    "BAND": 2,
    "BOR": 14,
    "BXOR": 12,
}


async def reduced(op: Any, dtype: str = "int64") -> list[float]:
    async def on_rank(rank: int) -> float:
        tensor = np.array([6, 10][rank : rank + 1], dtype)
        await dist.all_reduce(tensor, op)
        return tensor[0].item()

    return await run_ranks(2, on_rank, timeout=20)


@pytest.mark.parametrize("name", EXPECTED)
async def test_every_way_to_name_an_op(name: str) -> None:
    for op in (
        getattr(dist.ReduceOp, name),
        getattr(torch.distributed.ReduceOp, name),
        torch.distributed.ReduceOp(getattr(torch.distributed.ReduceOp, name)),
        name,
        name.lower(),
    ):
        assert await reduced(op) == [EXPECTED[name]] * 2
        # One and the same: what a group remembers of equal calls it finds by it.
        assert dist.ReduceOp.of(op) is getattr(dist.ReduceOp, name)


@pytest.mark.parametrize("factor", [2, 2.0, np.float64(2), np.array(2), torch.tensor(2.0)])
async def test_premul_sum(factor: Any) -> None:
    assert await reduced(dist.ReduceOp.premul_sum(factor), "float32") == [32.0] * 2


async def test_a_premul_sum_of_torch() -> None:
    op = torch.distributed._make_nccl_premul_sum(0.5)
    assert await reduced(op, "float32") == [8.0] * 2


async def test_each_rank_may_have_a_factor_of_its_own() -> None:
    async def on_rank(rank: int) -> float:
        tensor = torch.ones(1)
        await dist.all_reduce(tensor, dist.ReduceOp.premul_sum(10.0**rank))
        return tensor.item()

    assert await run_ranks(3, on_rank, timeout=20) == [111.0] * 3


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX"])
async def test_the_deprecated_name_works_and_warns(name: str) -> None:
    with pytest.warns(FutureWarning, match="reduce_op is deprecated, use ReduceOp"):
        op = getattr(dist.reduce_op, name)
    assert await reduced(op) == [EXPECTED[name]] * 2


@pytest.mark.parametrize("op", [dist.ReduceOp.PREMUL_SUM, torch.distributed.ReduceOp.PREMUL_SUM])
async def test_a_premul_sum_without_a_factor_raises_with_the_usage(op: Any) -> None:
    with pytest.raises(TypeError, match=r"pass ReduceOp.premul_sum\(factor\)"):
        await reduced(op)


def test_the_new_name_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dist.ReduceOp.SUM is dist.ReduceOp.SUM


async def test_averages_of_integers_are_cut_toward_zero() -> None:
    async def on_rank(rank: int) -> list[int]:
        tensor = torch.tensor([-3, 3, -4, 127], dtype=torch.int8)
        tensor[:3] += rank
        await dist.all_reduce(tensor, dist.ReduceOp.AVG)
        return tensor.tolist()

    # -5/2, 7/2, -7/2; the sum of 127 and 127 wraps around to -2.
    assert await run_ranks(2, on_rank, timeout=20) == [[-2, 3, -3, -1]] * 2


async def test_integers_wrap_around() -> None:
    async def on_rank(rank: int) -> list[int]:
        tensor = torch.tensor([200, 100], dtype=torch.uint8)
        await dist.all_reduce(tensor)
        return tensor.tolist()

    assert await run_ranks(3, on_rank, timeout=20) == [[600 % 256, 300 % 256]] * 3


async def test_bool_sums_are_or_and_products_and() -> None:
    async def on_rank(rank: int) -> tuple[list[bool], list[bool]]:
        ors = torch.tensor([rank == 1, True, False])
        ands = ors.clone()
        await dist.all_reduce(ors)
        await dist.all_reduce(ands, dist.ReduceOp.PRODUCT)
        return ors.tolist(), ands.tolist()

    expected = ([True, True, False], [False, True, False])
    assert await run_ranks(2, on_rank, timeout=20) == [expected] * 2


@pytest.mark.parametrize("factor", [torch.tensor([0.5, 2]), np.ones(2), "2", None, True, [2]])
def test_a_factor_that_is_no_number_is_refused_where_the_op_is_made(factor: Any) -> None:
    with pytest.raises(TypeError, match="factor of PREMUL_SUM must be a number or a 0-d tensor"):
        dist.ReduceOp.premul_sum(factor)
