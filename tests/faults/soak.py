"""Mixed operations and groups for a long time: what a rank holds must stay what it was.

``aiodist run -n 8 -m tests.faults.soak --seconds 300 --output FOLDER``; rank N writes what it
counted to ``FOLDER/N.json``. `verdict` says what grew.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.groups.world import current_world
from tests.faults.contents import of_rank, total

STEPS_A_ROUND = 40
SAMPLES = 100
"""About how many times each rank counts what it holds."""

LEAST_SAMPLES = 12
"""Taken in any time: the median of one or two says nothing, and a busy machine has no more in 4 s."""

WARM_UP = 0.25
"""Part of the samples in which caches may still fill."""

RSS_SLACK_BYTES = 6 << 20
RSS_GROWTH = 1.02

Sample = dict[str, float]


class Soak:
    """One rank. Every rank draws the same operations from the same numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._lasting = [np.empty(length) for length in (1000, 300_000, 300_000, 1_000_000)]
        self.operations = 0

    async def connect(self) -> None:
        """Connect each rank to each other one, so that no connection comes later.

        A rank opens another one's doorbell when it first finds it asleep, which may take long.
        """
        await dist.all_to_all([np.empty(1) for _ in range(self._size)], [np.ones(1)] * self._size)
        memory = current_world().endpoint.memory
        if memory is not None:
            others = [rank for rank in range(self._size) if rank != self._rank]
            assert all(memory.ring(rank, 0, thread=False) for rank in others)

    async def step(self) -> None:
        way = self._random.choice(
            [
                self._reduce,
                self._reduce,
                self._again,
                self._broadcast,
                self._gather,
                self._exchange,
                self._ring,
                self._objects,
                self._at_once,
                self._group,
                self._cancelled,
                self._withdrawn,
            ]
        )
        self.operations += 1
        await way()

    def _length(self) -> int:
        return self._random.choice([0, 1, 7, 1000, 1000, 40_000, 300_000])

    async def _reduce(self) -> None:
        data = of_rank(self._rank, self._length())
        await dist.all_reduce(data)
        assert (data == total(range(self._size), len(data))).all()

    async def _again(self) -> None:
        """On memory that stays, for which the group keeps what it has to do."""
        data = self._random.choice(self._lasting)
        data[:] = of_rank(self._rank, len(data))
        await dist.all_reduce(data)
        assert (data == total(range(self._size), len(data))).all()

    async def _broadcast(self) -> None:
        root = self._random.randrange(self._size)
        data = of_rank(self._rank, self._length())
        await dist.broadcast(data, root)
        assert (data == of_rank(root, len(data))).all()

    async def _gather(self) -> None:
        length = self._length()
        parts = [np.empty(length) for _ in range(self._size)]
        await dist.all_gather(parts, of_rank(self._rank, length))
        assert all((part == of_rank(rank, length)).all() for rank, part in enumerate(parts))

    async def _exchange(self) -> None:
        length = self._length() // self._size
        parts = [np.empty(length) for _ in range(self._size)]
        await dist.all_to_all(parts, [of_rank(self._rank, length)] * self._size)
        assert all((part == of_rank(rank, length)).all() for rank, part in enumerate(parts))

    async def _ring(self) -> None:
        length = self._length()
        left, right = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        sent = dist.isend(of_rank(self._rank, length), right, tag=3)
        got = np.empty(length)
        await dist.recv(got, left, tag=3)
        await sent
        assert (got == of_rank(left, length)).all()

    async def _objects(self) -> None:
        everybody: list[Any] = [None] * self._size
        await dist.all_gather_object(everybody, {"rank": self._rank, "text": "x" * self._length()})
        assert [one["rank"] for one in everybody] == list(range(self._size))

    async def _at_once(self) -> None:
        data = [np.full(self._length(), 1.0) for _ in range(8)]
        await asyncio.gather(*(dist.all_reduce(each) for each in data))
        assert all((each == self._size).all() for each in data)

    async def _group(self) -> None:
        members = sorted(
            self._random.sample(range(self._size), self._random.randint(1, self._size))
        )
        length = self._length()
        group = await dist.new_group(members)
        if self._rank in members:
            data = np.full(length, 1.0)
            await dist.all_reduce(data, group=group)
            assert (data == len(members)).all()
            await dist.destroy_process_group(group)

    async def _cancelled(self) -> None:
        """One rank gives an operation up: it fails on all of them, or was done before."""
        who, length = self._random.randrange(self._size), self._length()
        work = dist.all_reduce(np.ones(length))
        if self._rank == who:
            work.cancel()
        try:
            await work
        except (asyncio.CancelledError, dist.CollectiveCancelledError):
            pass
        await dist.barrier()

    async def _withdrawn(self) -> None:
        """A receive that is given up leaves its message to the next."""
        other = self._rank ^ 1
        if other >= self._size:
            return
        sent = dist.isend(np.full(10, float(self._rank)), other, tag=4)
        got = np.empty(10)
        given_up = dist.irecv(got, other, tag=4)
        given_up.cancel()
        try:
            await given_up  # the message may have been there already
        except asyncio.CancelledError:
            await dist.recv(got, other, tag=4)
        await sent
        assert (got == other).all()


def sample() -> Sample:
    """What this process holds now. The collector has run: garbage is no growth."""
    gc.collect()
    # Without what is shared: segments of a fixed size, whose pages come as they are touched.
    _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
    return {
        "rss_bytes": (resident - shared) * resource.getpagesize(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": Path("/proc/self/maps").read_text().count("/memfd:aiodist"),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


def verdict(samples: list[Sample]) -> list[str]:
    """What grew between the middle and the end of a run; empty where all stayed flat."""
    warm = samples[int(len(samples) * WARM_UP) :]
    half = len(warm) // 2
    early, late = warm[:half], warm[half:]
    grown = []
    for what in samples[0].keys() - {"rss_bytes", "seconds"}:
        before, after = (max(each[what] for each in part) for part in (early, late))
        if after > before:
            grown.append(f"{what}: {before} and then {after}")
    before, after = (
        statistics.median(each["rss_bytes"] for each in part) for part in (early, late)
    )
    if after > before * RSS_GROWTH + RSS_SLACK_BYTES:
        grown.append(f"memory: {before / 1e6:.1f} MB and then {after / 1e6:.1f} MB")
    return grown


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    await dist.init_process_group(timeout=60)
    soak = Soak(options.seed)
    await soak.connect()
    communicator = current_world().default_group().communicator
    shares = communicator is not None and not communicator.is_off
    begin = time.monotonic()
    due = begin
    samples: list[Sample] = []
    goes_on = np.ones(1)
    while goes_on[0]:
        for _ in range(STEPS_A_ROUND):
            await soak.step()
        now = time.monotonic()
        if now >= due:
            samples.append({"seconds": now - begin, **sample()})
            due = now + options.seconds / SAMPLES
        goes_on[0] = now - begin < options.seconds or len(samples) < LEAST_SAMPLES
        await dist.barrier()  # no rank leaves while another counts
        await dist.broadcast(goes_on, 0)
    await dist.destroy_process_group()
    report = {
        "shares": shares,
        "operations": soak.operations,
        "samples": samples,
        "grown": verdict(samples),
    }
    (options.output / f"{soak._rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
