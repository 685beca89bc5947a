"""Mistakes of programs that come from torch, trio or a larger group: the errors say what to do."""

from __future__ import annotations

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import World, use_world
from aiodist.testing import run_ranks


async def test_async_op_by_place_is_told_that_every_operation_is_async() -> None:
    async def main(rank: int) -> None:
        with pytest.raises(TypeError, match=r"group_src must be an int, not bool.*async_op"):
            dist.broadcast(np.ones(1), 0, None, True)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="async_op"):
            dist.reduce(np.ones(1), 0, dist.ReduceOp.SUM, None, False)  # type: ignore[arg-type]

    await run_ranks(2, main)


async def test_a_receive_in_a_group_of_one_is_refused() -> None:
    async def main(rank: int) -> None:
        for call in (
            lambda: dist.irecv(np.ones(1)),
            lambda: dist.recv(),
            lambda: dist.recv_object_list([None]),
        ):
            with pytest.raises(dist.InvalidUsageError, match="has no other rank"):
                call()

    await run_ranks(1, main)


async def test_an_argument_of_another_type_is_named() -> None:
    async def main(rank: int) -> None:
        with pytest.raises(TypeError, match="group_rank must be an int, not str"):
            dist.get_global_rank(None, "1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="group_size must be an int, not str"):
            dist.new_subgroups("1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="split_ranks must be a list, not ndarray"):
            dist.split_group(split_ranks=np.array([[0], [1]]))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"input_split_sizes must be a list, not int$"):
            dist.all_to_all_single_init(np.ones(2), np.ones(2), None, 1)  # type: ignore[arg-type]

    await run_ranks(2, main)


def test_a_loop_that_is_none_of_asyncios_is_named() -> None:
    """As trio drives a coroutine."""
    use_world(World())
    coroutine = dist.init_process_group(rank=0, world_size=1)
    with pytest.raises(dist.InvalidUsageError, match=r"asyncio.*trio"):
        coroutine.send(None)
    use_world(World())
