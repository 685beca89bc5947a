"""A service whose ranks are processes: one is killed in a request, another takes its place."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.limits import scaled

ROOT = Path(__file__).parents[2]

SERVICE = """
import asyncio, json, math, os, signal, sys

import numpy as np
import aiodist as dist

RANK, DEAD = int(os.environ["RANK"]), int(sys.argv[1])


async def worker():
    size = dist.get_world_size()

    async def forward(requests):
        if requests == ["die"] and not dist.is_replacement():
            if RANK == DEAD:
                os.kill(os.getpid(), signal.SIGKILL)
        part = np.ones(1)
        await dist.all_reduce(part)
        return [[size, part[0]]]

    return forward


async def ask(service, request):
    try:
        size, total = await service.call(request)
        assert size == total
        return size
    except dist.PeerLostError as error:
        return f"lost {error.rank}"


async def main():
    if dist.is_replacement():
        await dist.rejoin()
    else:
        await dist.init_process_group()
    await dist.register_elastic()
    async with dist.serving(worker) as service:
        if await service.until_leader():
            answers = []
            if RANK != DEAD:
                calls = (ask(service, each) for each in %s)
                answers = await asyncio.gather(*calls)
                if "--grow" in sys.argv:
                    group = await service.grow(timeout=math.inf)
                    answers += [list(group.newcomers), await ask(service, "all")]
            else:
                await ask(service, "die")
            print(json.dumps(answers), flush=True)
    await dist.destroy_process_group()


asyncio.run(main())
"""


def run(folder: Path, requests: list[str], launcher: list[str], *arguments: object) -> list[object]:
    """Run the service under ``aiodist run``; return what its last leader printed."""
    script = folder / "service.py"
    script.write_text(textwrap.dedent(SERVICE.replace("%s", repr(requests))))
    command = [sys.executable, "-m", "aiodist", "run", "-n", "3", *launcher, str(script)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(40),
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "] [" in line]  # "[rank] [answers]"
    assert lines, done.stdout + done.stderr
    found: list[object] = json.loads(lines[-1].partition("] ")[2])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dead", [1, 2])
def test_a_killed_worker_fails_its_request_alone_and_the_service_goes_on(tmp_path, dead):
    requests = ["first", "die", "waits", "waits"]
    answers = run(tmp_path, requests, ["--keep-going"], dead)
    assert answers == [3, f"lost {dead}", 2, 2]


@pytest.mark.slow
def test_a_replacement_is_taken_in_by_the_leader_alone(tmp_path):
    answers = run(tmp_path, ["first", "die"], ["--max-restarts", "1"], 2, "--grow")
    assert answers == [3, "lost 2", [2], 3]


@pytest.mark.slow
def test_the_rank_that_takes_the_lead_keeps_it_when_the_first_rank_comes_back(tmp_path):
    answers = run(tmp_path, ["first"], ["--max-restarts", "1"], 0, "--grow")
    assert answers == [2, [0], 3]
