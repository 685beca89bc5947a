"""Collectives over several tensors of each rank, through the blocking API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import aiodist.sync as dist


def test_every_call_by_its_positions(run_threads: Callable[..., list[Any]]) -> None:
    def on_rank(rank: int) -> list[Any]:
        tensors = [torch.full((3,), 1.0 + rank), torch.full((3,), 2.0 + rank)]
        assert dist.all_reduce_multigpu(tensors) is None
        summed = [tensor.tolist() for tensor in tensors]
        tensors[1].fill_(7 + rank)
        work = dist.broadcast_multigpu(tensors, 1, None, True, 1)
        assert work is not None
        assert work.wait()
        copied = [tensor.tolist() for tensor in tensors]
        dist.reduce_multigpu(tensors, 0, dist.ReduceOp.SUM, None, False, 1)
        outputs = [[torch.zeros(3) for _ in range(4)] for _ in range(2)]
        dist.all_gather_multigpu(outputs, tensors, None, False)
        return [summed, copied, [[int(o[0]) for o in row] for row in outputs]]

    for summed, copied, outputs in run_threads(2, on_rank):
        assert summed == [[8.0] * 3] * 2
        assert copied == [[8.0] * 3] * 2
        assert outputs == [[8, 32, 8, 8]] * 2


def test_a_rank_outside_the_group_has_nothing_to_do(run_threads: Callable[..., list[Any]]) -> None:
    def on_rank(rank: int) -> float:
        group = dist.new_group([0])
        tensors = [torch.ones(2), torch.ones(2)]
        if rank == 0:
            dist.all_reduce_multigpu(tensors, group=group)
        return float(tensors[0][0])

    assert run_threads(2, on_rank) == [2.0, 1.0]


@pytest.mark.parametrize("async_op", [False, True])
def test_a_wrong_tensor_list_raises_type_error_with_its_name(
    async_op: bool, run_threads: Callable[..., list[Any]]
) -> None:
    def on_rank(rank: int) -> None:
        wrong: Any = None
        with pytest.raises(TypeError, match="tensor_list must be a list, not NoneType"):
            dist.all_reduce_multigpu(wrong, async_op=async_op)

    run_threads(1, on_rank)
