"""Collectives of a group over MPI: in turn, and only where all ranks mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist

Call = Callable[[int, Any], dist.Work[None]]
"""(whether this rank is the odd one out, group) -> the operation."""


def ones(n: int) -> np.ndarray:
    return np.ones(n)


def some(n: int) -> list[np.ndarray]:
    return [ones(n) for _ in range(dist.get_world_size())]


MISMATCHES: dict[str, tuple[Call, str]] = {
    "lengths": (lambda odd, g: dist.broadcast(ones(4 + odd), 0, g), r"broadcast\(5 x float64"),
    "dtypes": (
        lambda odd, g: dist.all_reduce(torch.ones(4, dtype=torch.half if odd else None), group=g),
        r"all_reduce\(4 x float16",
    ),
    "half precision": (
        lambda odd, g: dist.all_reduce(torch.ones(4 + odd, dtype=torch.bfloat16), group=g),
        r"all_reduce\(5 x bfloat16",
    ),
    "ops": (
        lambda odd, g: dist.reduce(ones(4), 0, "max" if odd else "sum", g),  # type: ignore[arg-type]
        r"reduce\(4 x float64, MAX, root 0",
    ),
    "roots": (lambda odd, g: dist.reduce(ones(4), odd, group=g), "root 1"),
    "operations": (
        lambda odd, g: dist.barrier(g) if odd else dist.all_reduce(ones(4), group=g),
        r"barrier\(\)",
    ),
    "tensors and objects": (
        lambda odd, g: (
            dist.all_gather_object([None] * dist.get_world_size(), 1, g)
            if odd
            else dist.all_reduce(ones(4), group=g)
        ),
        "all_gather_object",
    ),
    "parts of all_gather": (
        lambda odd, g: dist.all_gather(
            [*some(3)[:-2], ones(2 if odd else 4), ones(4 if odd else 2)],
            ones(_own(odd, (2, 4), (4, 2))),
            g,
        ),
        "lengths with digest",
    ),
    "parts of gather": (
        lambda odd, g: dist.gather(ones(4 + odd), some(4) if _first() else None, 0, g),
        "how long the parts of the ranks are",
    ),
    "parts of scatter": (
        lambda odd, g: dist.scatter(ones(4 + odd), some(4) if _first() else None, 0, g),
        "how long the parts of the ranks are",
    ),
    "parts of all_to_all": (
        lambda odd, g: dist.all_to_all(some(4), some(4) if not odd else _one_longer(), g),
        "how long the parts of the ranks are",
    ),
}


def _first() -> bool:
    return dist.get_rank() == 0


def _own(odd: int, odd_lengths: tuple[int, int], lengths: tuple[int, int]) -> int:
    """How long this rank's own part is, of those of the last two ranks."""
    place = dist.get_rank() - dist.get_world_size()
    return 3 if place < -2 else (odd_lengths if odd else lengths)[place]


def _one_longer() -> list[np.ndarray]:
    parts = some(4)
    parts[0] = ones(5)
    return parts


async def agreement() -> None:
    """On any ranks from two on; the last one is the odd one out. The group goes on."""
    size = dist.get_world_size()
    odd = int(dist.get_rank() == size - 1)
    for call, words in MISMATCHES.values():
        group = await dist.new_group()
        disputed = call(odd, group)
        later = torch.ones(4, dtype=torch.bfloat16)  # which goes by messages
        work = dist.all_reduce(later, group=group)
        with pytest.raises(dist.CollectiveMismatchError, match=words):
            await disputed
        await work
        assert (later == size).all()
        await dist.barrier(group)
        await dist.destroy_process_group(group)
        # It has a communicator of its own, with nothing of the other group's in it.
        fresh = await dist.new_group()
        await dist.all_reduce(later, group=fresh)
        assert (later == size * size).all()
        await dist.destroy_process_group(fresh)
    await _in_turn(dist.get_rank(), size)


async def _in_turn(rank: int, size: int) -> None:
    """One has to be copied before it can begin, on some ranks; the others after it begin later."""
    big = np.ones((2000, 3000) if rank else (3000, 2000))
    first = big.T if not rank else big  # not in one piece
    assert first.shape == (2000, 3000)
    second, third = np.full(5, rank), torch.full((5,), float(rank), dtype=torch.bfloat16)
    works = [dist.all_reduce(first), dist.broadcast(second, 1), dist.all_reduce(third)]
    for work in reversed(works):
        await work
    assert (first == size).all()
    assert second.tolist() == [1] * 5
    assert (third == size * (size - 1) / 2).all()
