"""Bad calls: what they are made of, and what must be so after each.

Each is made on rank 1 of three alone, so a sequence number spent on it would show in the collective
that follows on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks

SIZE = 3
ME = 1


@dataclass
class Here:
    """What a bad call can be made of, on rank 1."""

    pair: dist.ProcessGroup  # of ranks 1 and 2
    outside: Any  # of ranks 0 and 2
    closed: dist.ProcessGroup
    foreign: dist.ProcessGroup  # rank 0's default group


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def ts(*lengths: int) -> list[torch.Tensor]:
    return [t(length) for length in lengths]


def read_only() -> np.ndarray:
    array = np.ones(4)
    array.flags.writeable = False
    return array


Call = Callable[[Here], object]
Entry = tuple[str, Call, type[Exception], str]
"""A name, the call, and the error with words of its message."""


def each(entries: list[Entry]) -> pytest.MarkDecorator:
    """A test for every entry."""
    params = [pytest.param(*entry[1:], id=entry[0]) for entry in entries]
    return pytest.mark.parametrize(("call", "error", "words"), params)


async def check_refused(call: Call, error: type[Exception], words: str) -> None:
    """``call`` raises at once, and the groups go on as if it had not been made."""
    worlds: list[dist.ProcessGroup] = []

    async def on_rank(number: int) -> None:
        here = await _prepare(number, worlds)
        if number == ME:
            with pytest.raises(error, match=words):
                call(here)
        if number != 0:
            assert await sum_of_ranks(here.pair) == 3
        assert await sum_of_ranks(None) == 3 * 4 // 2

    await run_ranks(SIZE, on_rank, timeout=20)


async def _prepare(number: int, worlds: list[dist.ProcessGroup]) -> Here:
    if number == 0:
        worlds.append(dist.group.WORLD)
    pair = await dist.new_group([1, 2])
    outside = await dist.new_group([0, 2])
    closed = await dist.new_group()
    await dist.destroy_process_group(closed)
    await dist.barrier()
    return Here(pair, outside, closed, worlds[0])


async def sum_of_ranks(group: dist.ProcessGroup | None) -> int:
    """1 + 2 in the group of ranks 1 and 2; in the world, the sum of rank + 1."""
    one = torch.tensor([dist.get_rank() + (group is None)])
    await dist.all_reduce(one, group=group)
    return int(one)
