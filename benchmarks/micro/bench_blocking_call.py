"""Cost of a blocking call: from the calling thread into the loop's thread and back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiodist.sync as dist
from aiodist.sync.portal import Portal


def bench_call(benchmark: Any) -> None:
    """Measure a call through the portal: a callback and a lock."""
    portal = Portal()
    portal.enter()
    try:
        benchmark(portal.call, int, False)
    finally:
        portal.leave()


def bench_blocking_operation(benchmark: Any, tmp_path: Path) -> None:
    """Measure a whole operation without a peer: a barrier of one rank."""
    dist.init_process_group(init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        benchmark(dist.barrier)
    finally:
        dist.destroy_process_group()


def bench_run_coroutine_threadsafe(benchmark: Any) -> None:
    """For comparison: asyncio's own way, on the same loop."""

    async def nothing() -> None:
        pass

    portal = Portal()
    loop = portal.enter()
    try:
        benchmark(lambda: asyncio.run_coroutine_threadsafe(nothing(), loop).result())
    finally:
        portal.leave()
