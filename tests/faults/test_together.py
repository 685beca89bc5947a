"""Ranks on two hosts, two on each: memory inside a host, a real network stack between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT
from tests.faults.hosts import hosts
from tests.faults.together import COUNT

HOSTS, EACH = 2, 2


@pytest.mark.timeout(90)
def test_two_ranks_on_each_of_two_hosts(tmp_path: Path) -> None:
    size = HOSTS * EACH
    with hosts(HOSTS) as network:
        ranks = [
            subprocess.Popen(
                network.command(
                    rank // EACH,
                    *(sys.executable, "-m", "tests.faults.together"),
                    *(str(rank), str(size), str(tmp_path / "store")),
                ),
                cwd=ROOT,
                env={
                    **os.environ,
                    "AIODIST_SOCKET_IFNAME": "eth0",
                    # They have one kernel, whose run is what would otherwise tell hosts apart.
                    "AIODIST_HOST_ID": f"host {rank // EACH}",
                    "AIODIST_SECRET": "of the hosts",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            answers = [json.loads(rank.communicate(timeout=80)[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for number, answer in enumerate(answers):
        first = number // EACH * EACH
        assert answer["sums"] == [10.0]
        assert answer["gathered"] == [0.0, 1.0, 2.0, 3.0]
        assert answer["shares with"] == [first, first + 1]
        # Each host sends its data once, each of its ranks a half; a flat ring would send half more.
        assert 4 * COUNT < answer["sent"] < 1.25 * 4 * COUNT
