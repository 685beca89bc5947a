"""Ranks on hosts of their own, made of network namespaces; a pulled cable sends no error to a peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cells import LIVENESS_SECONDS, ROUND_SECONDS, USUAL_SECONDS
from tests.faults.conftest import ROOT
from tests.faults.hosts import Hosts, hosts

SIZE = 3


@pytest.fixture(scope="module")
def network() -> Iterator[Hosts]:
    with hosts(SIZE) as made:
        yield made


class Ranks:
    """One rank on each host."""

    def __init__(self, network: Hosts, url: str, phase: str, size: int = SIZE) -> None:
        self._ranks = [
            subprocess.Popen(
                network.command(
                    rank,
                    *(sys.executable, "-m", "tests.faults.host_rank"),
                    *map(str, (rank, size, url, phase, USUAL_SECONDS)),
                ),
                cwd=ROOT,
                env={
                    **os.environ,
                    "AIODIST_SOCKET_IFNAME": "eth0",
                    # Not shared memory: these hosts have one kernel, and no cable keeps it apart.
                    "AIODIST_TRANSPORT": "unix,tcp",
                    "AIODIST_SECRET": "of the hosts",
                    "AIODIST_LIVENESS_TIMEOUT": str(LIVENESS_SECONDS),
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(SIZE)
        ]

    def until_ready(self) -> None:
        for rank in self._ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.stderr and rank.stderr.read()

    def go_on(self) -> list[dict[str, Any]]:
        """Let them go on; how each of them ended."""
        answers = []
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        for rank in self._ranks:
            out, err = rank.communicate()
            assert rank.returncode == 0, err
            assert "Traceback" not in err
            answers.append(json.loads(out))
        return answers

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.timeout(90)
def test_ranks_on_three_hosts_work(network: Hosts, tmp_path: Path) -> None:
    """Also Unix sockets are refused between namespaces, and TCP takes their place."""
    ranks = Ranks(network, f"file://{tmp_path}/store", "connecting")
    try:
        ranks.until_ready()
        assert [answer["error"] for answer in ranks.go_on()] == [None] * SIZE
    finally:
        ranks.kill()


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "phase", [pytest.param("connecting", marks=pytest.mark.extended), "in all_reduce"]
)
def test_a_pulled_cable_ends_operations_within_the_bound(
    phase: str, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    with hosts(SIZE) as network:
        ranks = Ranks(network, f"file://{tmp_path}/store", phase)
        try:
            ranks.until_ready()
            network.pull_cable(SIZE - 1)
            answers = ranks.go_on()
        finally:
            ranks.kill()
    for rank, answer in enumerate(answers):
        if rank != SIZE - 1:  # which may have had all it needed
            assert answer["error"] is not None, answers
            assert answer["typed"], answer
            assert answer["blames"] == [SIZE - 1], answer
        assert answer["seconds"] < scaled(LIVENESS_SECONDS + ROUND_SECONDS), answer


@pytest.mark.timeout(90)
@pytest.mark.parametrize("cut_off", [0, pytest.param(SIZE - 1, marks=pytest.mark.extended)])
def test_a_host_that_vanishes_while_ranks_meet_is_known_within_the_bound(
    cut_off: int, scaled: Callable[[float], float]
) -> None:
    """One more rank never comes, and is named beside."""
    with hosts(SIZE) as network:
        url = f"tcp://{network.address(0)}:29500"
        ranks = Ranks(network, url, "meeting", SIZE + 1)
        try:
            ranks.until_ready()
            network.pull_cable(cut_off)
            answers = ranks.go_on()
        finally:
            ranks.kill()
    for rank, answer in enumerate(answers):
        assert answer["typed"], answer
        assert SIZE in answer["not_arrived"], answer
        if rank != cut_off and cut_off != 0:
            assert answer["blames"] == [cut_off], answer
        elif rank != 0:  # all it knows is that rank 0 is not there
            assert answer["blames"] == [0], answer
        assert answer["seconds"] < scaled(LIVENESS_SECONDS + ROUND_SECONDS), answer
