"""The inference service for ten minutes under load, with a kill every 20 s: ``make soak-service``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.examples.apps.conftest import Started
from tests.examples.apps.load import BROKEN, Load, connected, health
from tests.faults.soak import Sample, verdict

RANKS, KILLS, PERIOD_SECONDS = 4, 30, 20.0
SPARED = 3
"""The rank that lives through all kills."""

REPORT_VARIABLE = "AIODIST_SERVICE_SOAK_REPORT"
"""Where it names a file, what was measured is written there."""


def sample(process: psutil.Process) -> Sample:
    """Return what ``process`` holds."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return {
        "rss_bytes": process.memory_full_info().uss,
        "descriptors": process.num_fds(),
        "segments": maps.count("/memfd:aiodist"),
        "threads": process.num_threads(),
    }


def kills_of_the_leader() -> Iterator[bool]:
    """Yield for each kill whether it is the leader's: in the first half never, then each second time."""
    yield from [False] * (KILLS // 2)
    yield from (number % 2 == 0 for number in range(KILLS - KILLS // 2))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_no_request_is_lost_and_nothing_grows(start: Started, ports: list[int]) -> None:
    options = ("--max-restarts", str(2 * KILLS))
    held: dict[str, list[Sample]] = {"worker": [], "leader": [], "launcher": []}
    resumed, whole, leaders = [], [], 0
    app, own_memory = "inference.py", (sys.executable,)
    async with (
        start(RANKS, app, "--port", str(ports[0]), options=options, python=own_memory) as job,
        connected(ports[0]) as (session,),
    ):
        facts = await health(session, ranks=list(range(RANKS)))
        spared, first = job.ranks()[SPARED], job.ranks()[facts["leader"]]
        begin = time.monotonic()
        async with Load([session]) as load:
            for number, kills_leader in enumerate(kills_of_the_leader()):
                await asyncio.sleep(begin + (number + 1) * PERIOD_SECONDS - time.monotonic())
                held["worker"].append(sample(spared))
                held["launcher"].append(sample(psutil.Process(job.process.pid)))
                if not leaders:
                    held["leader"].append(sample(first))
                leader = facts["leader"]
                others = [rank for rank in range(RANKS) if rank not in (leader, SPARED)]
                job.kill(leader if kills_leader else others[number % len(others)])
                leaders += kills_leader
                killed = time.monotonic()
                await load.answers(9)  # more than the eight that were under way
                resumed.append(time.monotonic() - killed)
                generation = 2 * (number + 1)  # one rank fewer, and one more again
                facts = await health(session, ranks=list(range(RANKS)), generation=generation)
                whole.append(time.monotonic() - killed)
        seconds = time.monotonic() - begin
        await session.post("/stop")
        await job.end()
    assert set(load.counts) <= {200, 503, BROKEN}, load.counts
    for name, samples in held.items():
        assert verdict(samples) == [], (name, samples)
    write(
        {
            "seconds": round(seconds),
            "ranks": RANKS,
            "kills": KILLS,
            "leaders": leaders,
            "answered": load.counts[200],
            "unavailable": load.counts[503],
            "broken": load.counts[BROKEN],
            "longest": round(load.longest, 2),
            "resumed": round(max(resumed), 2),
            "whole": round(max(whole), 2),
            "held": {name: early_and_late(samples) for name, samples in held.items()},
        }
    )


def write(report: dict[str, Any]) -> None:
    """Write ``report`` where the environment asks for it."""
    if place := os.environ.get(REPORT_VARIABLE):
        Path(place).write_text(json.dumps(report, indent=1) + "\n")


def early_and_late(samples: list[Sample]) -> dict[str, Any]:
    """Return what was held after a quarter of the samples, and at the end."""
    return {"early": samples[len(samples) // 4], "late": samples[-1]}
