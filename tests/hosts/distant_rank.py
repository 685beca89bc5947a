"""A rank on a distant host: it tells in a line of JSON how long a barrier and a reduction took."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np

import aiodist as dist

ELEMENTS = 1 << 18


async def main() -> None:
    await dist.init_process_group(timeout=120)
    size = dist.get_world_size()
    await dist.barrier()
    begin = time.monotonic()
    await dist.barrier()
    barrier = time.monotonic() - begin
    values = np.full(ELEMENTS, 2.0, np.float32)
    begin = time.monotonic()
    await dist.all_reduce(values)
    reduction = time.monotonic() - begin
    assert (values == 2.0 * size).all()
    gathered = [None] * size
    await dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    assert gathered == [{"rank": rank} for rank in range(size)]
    await dist.destroy_process_group()
    print(json.dumps({"barrier": barrier, "reduction": reduction}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
