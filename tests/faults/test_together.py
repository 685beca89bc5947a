"""Ranks on two hosts, two on each: memory inside a host, a real network stack between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import ROOT
from tests.faults.hosts import Hosts, hosts
from tests.faults.together import COUNT


def run(network: Hosts, each: int, store: Path, **environ: str) -> list[dict[str, Any]]:
    """``each`` ranks on each of two hosts; what they tell, by rank."""
    size = 2 * each
    ranks = [
        subprocess.Popen(
            network.command(
                rank // each,
                *(sys.executable, "-m", "tests.faults.together"),
                *(str(rank), str(size), str(store)),
            ),
            cwd=ROOT,
            env={
                **os.environ,
                "AIODIST_SOCKET_IFNAME": "eth0",
                # They have one kernel, whose run is what would otherwise tell hosts apart.
                "AIODIST_HOST_ID": f"host {rank // each}",
                "AIODIST_SECRET": "of the hosts",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **environ,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        return [json.loads(rank.communicate(timeout=80)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.timeout(90)
def test_two_ranks_on_each_of_two_hosts(tmp_path: Path) -> None:
    with hosts(2) as network:
        answers = run(network, 2, tmp_path / "store")
    for number, answer in enumerate(answers):
        first = number // 2 * 2
        assert answer["sums"] == [10.0]
        assert answer["gathered"] == [0.0, 1.0, 2.0, 3.0]
        assert answer["shares with"] == [first, first + 1]
        # Each host sends its data once, each of its ranks a half; a flat ring would send half more.
        assert 4 * COUNT < answer["sent"]["eth0"] < 1.25 * 4 * COUNT


@pytest.mark.timeout(90)
@pytest.mark.parametrize("streams", ["", "4", "1"])
def test_streams_go_from_interface_to_interface(tmp_path: Path, streams: str) -> None:
    with hosts(2) as network:
        network.second_cable()
        interfaces = "eth0,eth1"
        store = tmp_path / "store"
        answers = run(network, 1, store, AIODIST_SOCKET_IFNAME=interfaces, AIODIST_STREAMS=streams)
    for answer in answers:
        assert answer["sums"] == [3.0]
        shares = sorted(answer["sent"][name] / (2 * COUNT) for name in ("eth0", "eth1"))
        if streams == "1":  # over either: connections take the interfaces in turn
            assert shares[0] < 0.1
            assert shares[1] > 1.9
        else:
            assert 0.9 < shares[0] <= shares[1] < 1.1
