"""Questions cross from host to host; the hosts are network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.hosts import Hosts, hosts
from tests.observe.conftest import needs_gil

ROOT = Path(__file__).parents[2]
SIZE = 3

RANK = """
import sys, time
import numpy as np
import aiodist.sync as dist

def compute():
    time.sleep(600)

rank, size, master = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group(init_method=f"tcp://{master}:29500", rank=rank, world_size=size, timeout=60)
dist.barrier()
print("ready", flush=True)
if rank == 1:
    compute()
dist.all_reduce(np.ones(1), timeout=600)
"""

KEPT = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST_")}
ENVIRONMENT = KEPT | {
    "AIODIST_SECRET": "of the hosts",
    "AIODIST_RUN_ID": f"hosts-{os.getpid()}",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def network() -> Iterator[Hosts]:
    with hosts(SIZE) as made:
        yield made


@pytest.fixture
def job(network: Hosts) -> Iterator[list[subprocess.Popen[str]]]:
    """A rank on each host; the second computes, the others wait for it."""
    ranks = [
        subprocess.Popen(
            network.command(
                rank, sys.executable, "-c", RANK, str(rank), str(SIZE), network.address(0)
            ),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def why(network: Hosts, host: int, *arguments: str) -> str:
    return aiodist(network, host, "why", *arguments)


def aiodist(network: Hosts, host: int, *arguments: str) -> str:
    command = [sys.executable, "-m", "aiodist", *arguments]
    done = subprocess.run(
        network.command(host, *command),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_gil
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_any_host_tells_of_all_ranks_and_names_one_that_is_cut_off(
    network: Hosts, job: list[subprocess.Popen[str]], scaled: Callable[[float], float]
) -> None:
    blame = "Ranks 0, 2 wait for rank 1, which has not entered all_reduce(1 x float64, SUM)"
    end = time.monotonic() + scaled(30)
    while blame not in (told := why(network, 0)):
        assert time.monotonic() < end, told
    assert "in compute" in told
    assert blame in why(network, 2)
    live = json.loads(aiodist(network, 2, "top", "--once", "--json", "-i", "0.2"))
    assert [rank["waiting"] > 0.9 for rank in live["rank"]] == [True, False, True]
    assert live["slowest"] == 1
    network.pull_cable(1)
    began = time.monotonic()
    told = why(network, 0, "--timeout", "2")
    assert time.monotonic() - began < scaled(20)  # 2 seconds, and Python's start on a busy machine
    assert f"rank 1, which does not answer (process {job[1].pid} on " in told


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_doctor_compares_hosts_and_tries_the_ways(network: Hosts) -> None:
    command = [sys.executable, "-m", "aiodist", "doctor", "--nnodes", "2"]
    command += ["--master", f"{network.address(0)}:29501", "--node-rank"]
    nodes = [
        subprocess.Popen(
            network.command(node, *command, str(node)),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    for node, process in enumerate(nodes):
        told, _ = process.communicate()
        assert f"ranks use {network.address(node)}" in told, told
        assert "every host reaches every other" in told
        assert "are on one host" not in told
        assert process.returncode == 0, told
