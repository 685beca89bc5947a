"""Every operation against numpy on the ranks of a world of eight: a program for ``aiodist run -m``."""

from __future__ import annotations

import asyncio
import os

import aiodist as dist
from tests.operations.batch import complain, run_batch
from tests.operations.design import cases


async def main() -> None:
    # Hosts of one kernel: their ranks share no memory, as if each had its own.
    os.environ["AIODIST_HOST_ID"] = os.readlink("/proc/self/ns/net")
    await dist.init_process_group(timeout=120)
    batch = [case for case in cases() if case.size == dist.get_world_size()]
    complain(await run_batch(dist.get_rank(), batch))
    await dist.destroy_process_group()
    print(len(batch), "cases", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
