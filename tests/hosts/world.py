"""Ranks on hosts of network namespaces, which no launcher watches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from aiodist.launch.environment import meeting_environment, rank_environment
from tests.faults.cells import LIVENESS_SECONDS
from tests.faults.hosts import Hosts
from tests.hosts.conftest import ROOT

HOSTS, PER_HOST = 4, 2
SIZE = HOSTS * PER_HOST


class World:
    """Two ranks on each host, which no launcher watches."""

    def __init__(self, network: Hosts, *program: str, **environment: str) -> None:
        """``program``: the module of the ranks, and its arguments. ``environment``: theirs, too."""
        kept = {name: value for name, value in os.environ.items() if "AIODIST" not in name}
        shared = {
            "AIODIST_SECRET": "of the hosts",
            "AIODIST_LIVENESS_TIMEOUT": str(LIVENESS_SECONDS),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.ranks = [
            subprocess.Popen(
                network.command(rank // PER_HOST, sys.executable, "-m", *program),
                cwd=ROOT,
                env=kept
                | shared
                # Hosts of one kernel: their ranks share no memory, as if each had its own.
                | {"AIODIST_HOST_ID": network.names[rank // PER_HOST]}
                | environment
                | meeting_environment(network.address(0), 29500)
                | rank_environment(
                    rank=rank,
                    local_rank=rank % PER_HOST,
                    world_size=SIZE,
                    local_world_size=PER_HOST,
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(SIZE)
        ]

    def __enter__(self) -> World:
        return self

    def __exit__(self, *args: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def until_ready(self) -> None:
        """Wait until all are where the phase wants them."""
        for rank in self.ranks:
            assert rank.stdout is not None
            line = rank.stdout.readline()
            assert line == "ready\n", rank.stderr and rank.stderr.read()

    def go_on(self, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Let ``ranks`` go on; return how each of them ended."""
        chosen = list(ranks)
        for number in chosen:
            stdin = self.ranks[number].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        answers = {}
        for number in chosen:
            out, err = self.ranks[number].communicate()
            assert self.ranks[number].returncode == 0, err
            assert "Traceback" not in err
            answers[number] = json.loads(out)
        return answers
