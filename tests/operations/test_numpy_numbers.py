"""Ranks, tags, counts and times may be numbers of numpy, as they come out of computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks


async def test_ranks_tags_splits_and_timeouts_are_taken_as_numpy_numbers() -> None:
    first: Any = np.argmax([1, 0])
    second: Any = np.int32(1)
    two: Any = [np.int64(2), np.int64(2)]
    tag: Any = np.uint8(3)
    ranks: Any = np.arange(2)

    async def main(rank: int) -> None:
        group = await dist.new_group(ranks, timeout=np.int64(20))
        data = torch.full((4,), float(rank))
        await dist.broadcast(data, second, timeout=np.float32(5))
        assert data.tolist() == [1.0] * 4
        await dist.reduce(data, group_dst=first, group=group)
        if rank == 0:
            assert data.tolist() == [2.0] * 4
            await dist.send(data, second, tag=tag)
        else:
            assert await dist.recv(data, first, tag=tag) == 0
            assert data.tolist() == [2.0] * 4
        out = torch.zeros(4)
        await dist.all_to_all_single(out, torch.arange(4.0) + 4 * rank, two, two)
        assert out.tolist() == [2.0 * rank + i for i in (0, 1, 4, 5)]

    await run_ranks(2, main, timeout=20)


@pytest.mark.parametrize("wrong", [np.bool_(True), np.float64(1), np.array([0, 1])])
async def test_other_values_of_numpy_are_no_ranks(wrong: Any) -> None:
    async def main(rank: int) -> None:
        with pytest.raises(TypeError, match="src must be an int, not"):
            dist.broadcast(torch.zeros(1), wrong)

    await run_ranks(2, main, timeout=20)


async def test_splits_are_a_list() -> None:
    async def main(rank: int) -> None:
        wrong: Any = np.array([2, 2])
        said = r"output_split_sizes must be a list, not ndarray: pass list\(output_split_sizes\)"
        with pytest.raises(TypeError, match=said):
            dist.all_to_all_single(torch.zeros(4), torch.zeros(4), wrong)

    await run_ranks(2, main, timeout=20)


@pytest.mark.parametrize("splits", [[1.0, 1.0], [True, True], np.ones(2, np.int64)])
async def test_splits_that_are_refused_are_so_after_equal_ones_too(splits: Any) -> None:
    async def main(rank: int) -> None:
        data, place = np.full(2, rank), np.zeros(2, np.int64)
        for equal in ([1, 1], (1, 1), [np.int64(1)] * 2):
            place[:] = -1
            await dist.all_to_all_single(place, data, equal, equal)
            assert place.tolist() == [0, 1]
        for both in ((splits, [1, 1]), ([1, 1], splits)):
            with pytest.raises(TypeError, match="split_sizes must be"):
                dist.all_to_all_single(place, data, *both)

    await run_ranks(2, main, "shm", timeout=20)
