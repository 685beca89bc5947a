"""The end of a program of the async API that has not called destroy_process_group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = """
import asyncio, os, pathlib, sys, time
import numpy as np
import aiodist as dist

async def main():
    await dist.init_process_group()
    rank = dist.get_rank()
    never = dist.irecv(np.zeros(1), 1 - rank, tag=4)
    await dist.all_reduce(np.ones(3))
    if rank == 0 and sys.argv[1] == "error":
        raise KeyError("the program's own")

def ended(rank):
    pathlib.Path(sys.argv[2], str(rank)).touch()
    while not pathlib.Path(sys.argv[2], str(1 - rank)).exists():
        time.sleep(0.001)

try:
    asyncio.run(main())
finally:
    ended(int(os.environ["RANK"]))
"""
"""A rank whose loop still runs is right to report one whose process has ended. So no process ends
before both loops have."""


def run_job(
    folder: Path, source: str, size: int, *arguments: str, seconds: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``source`` on ``size`` ranks by the launcher, within ``seconds``."""
    script = folder / "script.py"
    script.write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "aiodist", "run", "-n", str(size), str(script), *arguments],
        cwd=ROOT,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


UNMET = """
import asyncio
import numpy as np
import aiodist as dist

async def main():
    async with dist.process_group():
        if dist.get_rank() == 0:
            events = dist.membership()
            for receive in (dist.recv, dist.recv_object):
                try:
                    await receive()
                except dist.PeerLostError as error:
                    print(error.departed, error.departure)
            both = [await anext(events), await anext(events)]
            print(sorted((event.kind, event.rank) for event in both))

asyncio.run(main())
"""


@pytest.mark.parametrize("transport", ["shm,unix", "unix", "tcp"])
def test_ranks_that_leave_without_a_message_end_a_receive_from_any_rank(
    tmp_path: Path, scaled: Callable[[float], float], transport: str
) -> None:
    job = run_job(tmp_path, UNMET, 3, seconds=scaled(30), AIODIST_TRANSPORT=transport)
    told = ["[0] (1, 2) left"] * 2 + ["[0] [('left', 1), ('left', 2)]"]
    assert (job.returncode, job.stdout.splitlines()) == (0, told), job.stderr


@pytest.mark.parametrize("how", ["end", "error"])
def test_a_leaving_rank_neither_hangs_nor_logs(
    tmp_path: Path, scaled: Callable[[float], float], how: str
) -> None:
    job = run_job(tmp_path, SOURCE, 2, how, str(tmp_path), seconds=scaled(30))
    said = [line for line in job.stderr.splitlines() if line.startswith("[")]
    assert job.stdout == ""
    if how == "end":
        assert (job.returncode, said) == (0, [])
    else:
        assert job.returncode == 1
        assert sum("Traceback" in line for line in said) == 1
        assert said[-1] == '[0] KeyError: "the program\'s own"'


ORPHANED = """
import asyncio, contextlib, os, sys
import aiodist as dist

async def main():
    await dist.init_process_group(
        init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2, timeout=60
    )
    await dist.barrier()

def held():
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the heartbeats' thread may have closed it by now
            count += os.readlink("/proc/self/fd/" + name) == sys.argv[1]
    return count

asyncio.run(main())
print(held(), end=" ")
asyncio.run(dist.destroy_process_group())
print(held())
"""


def test_a_loop_that_ends_without_it_gives_back_the_file_of_the_store(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    path = str((tmp_path / "meet").resolve())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ORPHANED, path, str(rank)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.communicate(timeout=scaled(30)) == ("1 0\n", "")
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


STOPPED = """
import asyncio, os, signal, sys, time
import numpy as np
import aiodist as dist
import aiodist.sync as blocking

how, url, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
facts = dict(
    init_method=url, rank=rank, world_size=2, timeout=60, liveness_timeout=60
)

def stop():
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def told():
    print("leaves", flush=True)
    sys.stdin.readline()  # until the other has stopped
    return time.monotonic()

async def main():
    await dist.init_process_group(**facts)
    if how != "unconnected":
        await dist.barrier()
    if rank == 1:
        stop()
    begin = told()
    if how != "idle":
        works = [dist.isend(np.zeros(4 << 20), 1, tag=tag) for tag in range(2)]
        assert not all(work.is_completed() for work in works)
    await dist.destroy_process_group()
    print("left", time.monotonic() - begin, len(asyncio.all_tasks()), flush=True)

def block():
    blocking.init_process_group(**facts)
    blocking.barrier()
    if rank == 1:
        stop()
    told()
    works = [blocking.isend(np.zeros(4 << 20), 1, tag=tag) for tag in range(2)]
    [work.is_completed() for work in works]
    # and ends, without destroy_process_group

block() if how == "exit" else asyncio.run(main())
"""
LONGEST = {"exit": 8.0, "idle": 2.0, "unconnected": 8.0}
"""Seconds that it takes to leave a rank that is stopped; they are promised in the docstring."""


def test_a_rank_that_is_stopped_does_not_hold_up_the_others(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    jobs: dict[str, list[subprocess.Popen[str]]] = {}
    try:
        for how in LONGEST:
            jobs[how] = [
                subprocess.Popen(
                    [sys.executable, "-c", STOPPED, how, f"file://{tmp_path}/{how}", str(rank)],
                    cwd=ROOT,
                    env={**os.environ, "AIODIST_TRANSPORT": "tcp"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(2)
            ]
        begins = {}
        for how, (first, second) in jobs.items():
            for process, word in ((first, "leaves"), (second, "stopped")):
                assert process.stdout is not None
                assert process.stdout.readline().strip() == word
            begins[how] = time.monotonic()
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
        for how, (first, _) in jobs.items():
            told, said = first.communicate(timeout=scaled(30))
            took = time.monotonic() - begins[how]
            assert first.returncode == 0
            assert "Traceback" not in said  # that two sends got lost may be said
            if how == "exit":
                assert told == ""
            else:
                word, seconds, tasks = told.split()
                assert (word, tasks) == ("left", "1")
                took = float(seconds)
            assert took < scaled(LONGEST[how])
    finally:
        for process in (process for pair in jobs.values() for process in pair):
            process.kill()
            process.communicate()
