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
    """Ranks on each host, which no launcher watches."""

    def __init__(
        self, network: Hosts, *program: str, per_host: int = PER_HOST, **environment: str
    ) -> None:
        """``program``: what Python runs, and its arguments. ``environment``: further variables."""
        size = per_host * len(network.names)
        kept = {name: value for name, value in os.environ.items() if "AIODIST" not in name}
        shared = {
            "AIODIST_SECRET": "of the hosts",
            "AIODIST_LIVENESS_TIMEOUT": str(LIVENESS_SECONDS),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.ranks = [
            subprocess.Popen(
                network.command(rank // per_host, sys.executable, *program),
                cwd=ROOT,
                env=kept
                | shared
                # Hosts of one kernel: their ranks share no memory, as if each had its own.
                | {"AIODIST_HOST_ID": network.names[rank // per_host]}
                | environment
                | meeting_environment(network.address(0), 29500)
                | rank_environment(
                    rank=rank,
                    local_rank=rank % per_host,
                    world_size=size,
                    local_world_size=per_host,
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
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
        """Let ``ranks`` go on; return the line of JSON that each of them ended with."""
        chosen = list(ranks)
        for number in chosen:
            stdin = self.ranks[number].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        return {number: json.loads(self.output_of(number)) for number in chosen}

    def output_of(self, number: int) -> str:
        """Return what rank ``number`` wrote, after its end by exit code 0."""
        out, err = self.ranks[number].communicate()
        assert self.ranks[number].returncode == 0, err
        assert "Traceback" not in err
        return out
