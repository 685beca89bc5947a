"""`run_ranks`: what a body may do with the world that it finds."""

from __future__ import annotations

import aiodist as dist
from aiodist.testing import run_ranks


async def test_a_body_may_destroy_its_group_as_a_script_does() -> None:
    async def main(rank: int) -> int:
        await dist.destroy_process_group()
        return rank

    assert await run_ranks(2, main) == [0, 1]
