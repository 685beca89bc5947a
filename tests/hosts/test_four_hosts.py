"""Four hosts of two ranks: every operation, and what becomes of it when a host or a link fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cells import LIVENESS_SECONDS, ROUND_SECONDS
from tests.faults.hosts import hosts
from tests.hosts.conftest import Lab
from tests.hosts.fault_rank import IDLE, PHASES, THROUGHOUT
from tests.hosts.world import HOSTS, PER_HOST, SIZE, World

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(180)]

FAULT_RANK = ("-m", "tests.hosts.fault_rank")
LOST = list(range(SIZE - PER_HOST, SIZE))
SURVIVORS = range(SIZE - PER_HOST)


def test_every_operation_between_four_hosts(four_hosts: Lab) -> None:
    code, out, err = four_hosts.run(
        "-H", "h1:2,h2:2,h3:2,h4:2", "-m", "tests.hosts.operations_rank"
    )
    assert code == 0, err
    (count,) = {line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert int(count.split()[0]) > 100


def test_rules_between_four_hosts_are_measured_over_their_links(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    table = tmp_path / "table.json"
    with hosts(HOSTS) as network:
        for number in range(HOSTS):
            network.limit(number, "200mbit")
        command = [sys.executable, "-m", "aiodist", "tune", "all_reduce", "broadcast"]
        command += ["-s", "4K,1M", "--seconds", "0", "-n", str(PER_HOST), "-o", str(table)]
        command += ["--nnodes", str(HOSTS), "--master-addr", network.address(0)]
        environment = {**os.environ, "AIODIST_SECRET": "of the hosts", "OMP_NUM_THREADS": "1"}
        nodes = [
            subprocess.Popen(
                network.command(number, *command, "--node-rank", str(number)),
                # Hosts of one kernel: their ranks share no memory, as if each had its own.
                env=environment | {"AIODIST_HOST_ID": network.names[number]},
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(HOSTS)
        ]
        try:
            said = [node.communicate(timeout=scaled(60))[1] for node in nodes]
        finally:
            for node in nodes:
                node.kill()
    assert [node.returncode for node in nodes] == [0] * HOSTS, said
    rows = json.loads(table.read_text())["hosts_rows"]
    assert {row["hosts"] for name in ("all_reduce", "broadcast") for row in rows[name]} == {HOSTS}


@pytest.mark.parametrize("phase", [IDLE, *PHASES])
@pytest.mark.parametrize("fault", ["a host vanishes", "a link is cut"])
def test_a_lost_host_ends_operations_within_the_bound(
    fault: str, phase: str, scaled: Callable[[float], float]
) -> None:
    with hosts(HOSTS) as network, World(network, *FAULT_RANK, phase) as world:
        world.until_ready()
        network.pull_cable(HOSTS - 1)  # first: the end of its processes is told to no other host
        vanishes = fault == "a host vanishes"
        for rank in LOST if vanishes else ():
            world.ranks[rank].kill()
        answers = world.go_on(SURVIVORS if vanishes else range(SIZE))
    for rank, answer in answers.items():
        if rank in LOST and answer["error"] is None:
            continue  # it had all it needed before the link was cut
        assert answer["error"] is not None, (rank, answers)
        assert answer["typed"], (rank, answer)
        others = set(SURVIVORS) if rank in LOST else set(LOST)
        assert set(answer["blames"]) <= others, (rank, answer)
        assert answer["blames"], (rank, answer)
        assert answer["seconds"] < scaled(LIVENESS_SECONDS + ROUND_SECONDS), (rank, answer)


def test_operations_succeed_over_a_link_that_halves() -> None:
    with hosts(HOSTS) as network, World(network, *FAULT_RANK, THROUGHOUT) as world:
        for number in range(HOSTS):
            network.limit(number, "200mbit")
        world.until_ready()
        network.limit(HOSTS - 1, "100mbit")
        answers = world.go_on(range(SIZE))
    assert {answer["error"] for answer in answers.values()} == {None}, answers
