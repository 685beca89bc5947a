"""A rank's function in a worker process that lives on: its groups end with it."""

from __future__ import annotations

from typing import Any

import pytest
import uvloop

import aiodist as dist
from aiodist.groups.world import World, current_world, use_world
from aiodist.integrations.worker_ranks import call_and_leave
from aiodist.launch.ports import reserve_port


@pytest.fixture(scope="module", autouse=True)
def _what_uvloop_opens_once() -> None:
    """uvloop's first loop opens a pipe that the process keeps; no test of ours left it behind."""
    uvloop.new_event_loop().close()


@pytest.fixture
def world() -> Any:
    before, own = current_world(), World()
    use_world(own)
    yield own
    use_world(before)


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_ends_in_the_loop_of_a_coroutine_that_an_ordinary_function_returns(
    world: World, fails: bool
) -> None:
    async def job() -> int:
        await dist.init_process_group()
        await dist.barrier()
        if fails:
            raise KeyError("x")
        return dist.get_world_size()

    def logged() -> Any:
        return job()

    for _ in range(2):
        with reserve_port() as port:
            variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            variables["MASTER_PORT"] = str(port.port)
            if fails:
                with pytest.raises(KeyError):
                    call_and_leave(logged, (), variables)
            else:
                assert call_and_leave(logged, (), variables) == 1
        assert not world.is_initialized
        assert world.its_loop is None
        assert world.destroyed, "in its own loop, and not given up after that had ended"
