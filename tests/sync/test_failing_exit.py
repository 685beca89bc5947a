"""A process that ends because of another rank's error ends after that rank: launchers report the first."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limits import scaled

FAILS = """
import atexit
import multiprocessing
import os
import sys
import time
from multiprocessing import util
from pathlib import Path
import numpy as np
import aiodist.sync as dist
from aiodist.groups.world import current_world
from aiodist.sync import lifecycle

rank, store, held, way = int(sys.argv[1]), *sys.argv[2:]


async def outlast(pids, seconds):
    print(*pids, flush=True)
    await outlast_them(pids, 1000.0)


outlast_them, lifecycle.outlast = lifecycle.outlast, outlast


def run():
    if rank == 1:  # called after aiodist has left
        if way != "multiprocessing":
            atexit.register(Path(held).read_text)
        else:
            util.Finalize(None, Path(held).read_text, exitpriority=0)
    dist.init_process_group("aiodist", "file://" + store, rank=rank, world_size=2, timeout=60)
    x = np.ones(1)
    dist.all_reduce(x)
    if rank == 1:
        print(os.getpid(), flush=True)
        raise ValueError
    if way == "unharmed":
        while not current_world().endpoint.lost_processes():
            time.sleep(0.01)
        return
    try:
        dist.all_reduce(x)
    except dist.PeerLostError:
        raise RuntimeError  # what it is by then, as in a backward of torch's


if way == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    sys.exit(process.exitcode)
run()
"""


@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="the system tells no process of another's end"
)
@pytest.mark.parametrize("way", ["script", "multiprocessing"])
def test_a_rank_that_fails_because_of_another_ends_after_it(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path, way: str
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    ranks = [script(FAILS, rank, tmp_path / "store", held, way) for rank in range(2)]
    assert ranks[0].stdout is not None
    assert ranks[1].stdout is not None
    assert ranks[0].stdout.readline() == ranks[1].stdout.readline() != ""
    held.write_text("")
    ended = [rank.communicate(timeout=scaled(30)) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], ended


def test_a_rank_that_ends_in_order_waits_for_none(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    ranks = [script(FAILS, rank, tmp_path / "store", held, "unharmed") for rank in range(2)]
    assert ranks[0].communicate(timeout=scaled(30)) == ("", "")
    held.write_text("")
    ranks[1].communicate(timeout=scaled(30))
    assert [rank.returncode for rank in ranks] == [0, 1]
