"""Memory that a rank holds for unclaimed messages, and that large transfers take."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.p2p.outbox import EAGER_BYTES
from tests.engine.conftest import RunRanks
from tests.limits import until

MIB = 1 << 20
WINDOW = MIB
PROBE = Path(__file__).with_name("memory_probe.py")


@pytest.mark.parametrize(
    ("nbytes", "count"),
    [(8, 8_000), (4096, 2_000), (EAGER_BYTES // 2, 40), (2 * EAGER_BYTES, 20)],
    ids=["tiny", "small", "eager", "large"],
)
async def test_a_flooded_rank_holds_no_more_than_its_window(
    streams: RunRanks, nbytes: int, count: int
) -> None:
    """And serves other tags and groups meanwhile, and gets everything in order in the end."""
    flooded = asyncio.Event()

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        words = nbytes // 8
        if rank == 0:
            works = [dist.isend(np.full(words, n), 1, tag=1) for n in range(count)]
            await dist.recv(np.zeros(1), 1, tag=5)
            flooded.set()
            await dist.send(np.full(words, -1), 1, tag=2)
            await dist.all_reduce(np.zeros(words), group=group)
            for work in works:
                await work
            return
        inbox = current_world().endpoint.inbox
        matcher = inbox.matcher
        await dist.send(np.zeros(1), 0, tag=5)
        await flooded.wait()
        await until(lambda: bool(matcher.arrived))
        into = np.zeros(words, np.int64)
        held = matcher.arrived_bytes()
        await dist.recv(into, 0, tag=2)
        assert (into == -1).all()
        await dist.all_reduce(np.zeros(words), group=group)
        held = max(held, matcher.arrived_bytes())
        for number in range(count):
            await dist.recv(into, 0, tag=1)
            assert into[0] == into[-1] == number
            if number % 16 == 0:
                held = max(held, matcher.arrived_bytes())
        assert held <= WINDOW
        if nbytes < EAGER_BYTES:
            assert held > 0
        assert not matcher.arrived

    await streams(2, main, buffer_bytes=WINDOW)


async def test_two_ranks_that_flood_each_other_and_receive_afterwards(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        sends = [dist.isend(np.full(5_000, n), 1 - rank, tag=n % 3) for n in range(200)]
        into = np.zeros(5_000, np.int64)
        for tag in (2, 1, 0):
            for number in range(tag, 200, 3):
                await dist.recv(into, 1 - rank, tag=tag)
                assert into[0] == number
        for send in sends:
            await send

    await streams(2, main, buffer_bytes=1 << 16)


async def test_collectives_started_by_the_hundred_stay_within_the_window(streams: RunRanks) -> None:
    """Rank 1 enters late; what rank 0 sends ahead is held back and asked for."""
    started = asyncio.Event()

    async def main(rank: int) -> None:
        data = [np.full(20_000, float(rank)) for _ in range(100)]
        if rank == 1:
            await started.wait()
            await until(lambda: bool(current_world().endpoint.inbox.matcher.arrived))
            assert current_world().endpoint.inbox.matcher.arrived_bytes() <= 1 << 18
        works = [dist.all_reduce(each) for each in data]
        started.set()
        for work, each in zip(works, data, strict=True):
            await work
            assert (each == 1).all()

    await streams(2, main, buffer_bytes=1 << 18)


async def probe(
    path: Path, transport: str, scenario: str, mebibytes: int, window: int
) -> list[int]:
    """What the memory of two processes of their own has grown by, in bytes, by rank."""
    environ = {
        **os.environ,
        "AIODIST_TRANSPORT": transport,
        "AIODIST_BUFFER_BYTES": str(window),
        "MALLOC_ARENA_MAX": "1",
    }
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROBE), str(path), str(rank), scenario, str(mebibytes)),
            stdout=asyncio.subprocess.PIPE,
            env=environ,
        )
        for rank in range(2)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(output)["grown"] for output, _ in outputs]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("transport", [pytest.param("tcp", marks=pytest.mark.extended), "unix"])
@pytest.mark.parametrize("scenario", ["send", "all_reduce"])
async def test_large_transfers_take_little_memory_beyond_the_tensors(
    tmp_path: Path, scaled: Callable[[float], float], transport: str, scenario: str
) -> None:
    """128 MiB here; the growth does not depend on the size (1 GiB: 6 MiB at most)."""
    async with asyncio.timeout(scaled(40)):
        grown = await probe(tmp_path / "store", transport, scenario, 128, 64 * MIB)
    assert max(grown) <= 32 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "scenario",
    [
        "flood_small",
        pytest.param("flood_eager", marks=pytest.mark.extended),
        pytest.param("flood_large", marks=pytest.mark.extended),
    ],
)
async def test_a_flood_takes_no_more_memory_than_the_window(
    tmp_path: Path, scaled: Callable[[float], float], scenario: str
) -> None:
    window = 8 * MIB
    async with asyncio.timeout(scaled(40)):
        grown = await probe(tmp_path / "store", "unix", scenario, 24, window)
    assert grown[1] <= window + 8 * MIB
