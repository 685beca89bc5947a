"""``aiodist tune`` over several hosts, and jobs over hosts that load what it writes.

Ranks are on several hosts where they go by different names, as in tests/engine/test_hosts.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.rule_tables import decode, encode
from aiodist.collectives.select import HOSTS_RULES, MANY, Choice, Rule, select
from aiodist.commands import tune
from aiodist.errors import DistNetworkError
from aiodist.groups.world import current_world
from aiodist.launch.ports import reserve_port
from aiodist.launch.spec import DEFAULT_MASTER_PORT, JobSpec
from aiodist.testing import run_ranks
from aiodist.tuning.candidates import hosts_candidates
from aiodist.tuning.tuning_rank import Runs, measure

OPERATIONS = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
TWO_AND_TWO = HostTopology([0, 0, 1, 1])


@contextmanager
def sent() -> Iterator[Callable[[], int]]:
    """How many messages this rank has sent meanwhile."""
    endpoint = current_world().endpoint
    messages, send = [], endpoint.send

    def note(*args: Any) -> Any:
        messages.append(args)
        return send(*args)

    endpoint.send = note  # type: ignore[method-assign]
    try:
        yield lambda: len(messages)
    finally:
        del endpoint.send


def test_candidates_differ_and_fit() -> None:
    found = hosts_candidates("all_reduce", TWO_AND_TWO, 4 << 20)
    pieces = [Choice("stripes", piece << 20) for piece in (1, 2)]  # of 2 MiB that a column has
    assert found == [Choice("leaders"), Choice("stripes", 512 << 10), *pieces]
    assert hosts_candidates("reduce", TWO_AND_TWO, 64) == [
        Choice("leaders"),
        Choice("stripes", 512 << 10),
    ]
    longest = hosts_candidates("broadcast", TWO_AND_TWO, 64 << 20)
    assert len(longest) == len(set(longest))


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_columns_are_for_hosts_with_equally_many_ranks(operation: str) -> None:
    names = {choice.algorithm for choice in hosts_candidates(operation, TWO_AND_TWO, 1024)}
    assert names == {"leaders", "columns"}
    assert hosts_candidates(operation, HostTopology([0, 0, 1]), 1024) == [Choice("leaders")]


async def test_measures_every_operation_over_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    """By rank 0's order, whatever the others were told."""

    async def rank(number: int) -> str | None:
        operations = OPERATIONS if number == 0 else ("reduce",)
        order = {"operations": operations, "sizes": [64], "seconds": 0}
        return await measure(current_world().default_group(), order)

    answers = await run_ranks(4, rank, "shm", hosts=(0, 0, 1, 1), timeout=30)
    assert answers[1:] == [None] * 3
    text = answers[0]
    assert text is not None
    told = capfd.readouterr().err
    assert "do not all share memory here" in told
    for operation in OPERATIONS:
        [line] = [
            line
            for line in told.splitlines()
            if line.startswith(f"{operation} 64 bytes, 4 ranks, over 2 hosts: ")
        ]
        names = [choice.algorithm for choice in hosts_candidates(operation, TWO_AND_TWO, 64)]
        assert all(f"{name}/" in line for name in names), line
        row = decode(text).hosts[operation][0]
        assert (row.least, row.ranks, row.nbytes) == (2, 2, MANY)
        assert row.choice.algorithm in names


@pytest.mark.parametrize(
    ("hosts", "transport", "why"),
    [
        ((0, 0), "shm", "all ranks live on one host"),
        ((0, 1), "shm", "each rank lives on a host of its own"),
        ((0, 0, 1), "inproc", "there are ranks without shared memory"),
    ],
)
async def test_says_why_there_is_nothing_to_measure(
    hosts: tuple[int, ...], transport: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def rank(_: int) -> str | None:
        order = {"operations": ["broadcast"], "sizes": [64], "seconds": 0}
        return await measure(current_world().default_group(), order)

    answers = await run_ranks(len(hosts), rank, transport, hosts=hosts, timeout=20)
    assert answers[0] is not None
    assert decode(answers[0]).hosts == HOSTS_RULES
    assert why in capfd.readouterr().err


@pytest.mark.parametrize("name", ["leaders", "stripes"])
async def test_a_job_over_hosts_goes_by_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One rank of each host sends, or all ranks do, in columns; the results are the same."""
    path = tmp_path / "table.json"
    row = Rule(2, MANY, Choice(name, 1024), least=2)
    path.write_text(encode({}, {}, {"all_reduce": [row]}, {}))
    monkeypatch.setenv("AIODIST_TABLE", str(path))

    async def rank(number: int) -> int:
        await dist.barrier()
        assert select("all_reduce", 2, 64, rules=current_world().tables.hosts) == row.choice
        with sent() as count:
            for length in (1, 3, 10_000):
                data = np.full(length, number + 1.0)
                await dist.all_reduce(data)
                assert (data == 10).all()
            return count()

    counts = await run_ranks(4, rank, "shm", hosts=(0, 0, 1, 1), timeout=20)
    assert [count > 0 for count in counts] == [True, name == "stripes"] * 2


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_run_goes_by_its_choice(operation: str) -> None:
    """One rank of each host sends, or all do; broadcast and reduction send from one host only."""

    async def rank(_: int) -> list[bool]:
        await dist.barrier()
        group = current_world().default_group()
        assert group.topology is not None
        runs, found = Runs(operation, group, 1 << 12, "hosts"), []
        for choice in hosts_candidates(operation, group.topology, 1 << 12)[:2]:
            with sent() as count:
                await runs.start(choice)
                found.append(count() > 0)
        return found

    columns = await run_ranks(4, rank, "shm", hosts=(0, 0, 1, 1), timeout=20)
    senders = [[rank for rank in range(4) if columns[rank][number]] for number in range(2)]
    leaders, all_of = {"broadcast": ([0], [0, 1]), "reduce": ([2], [2, 3])}.get(
        operation, ([0, 2], [0, 1, 2, 3])
    )
    assert senders == [leaders, all_of]


def test_jobs_of_one_run_meet_at_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there are several nodes; else each reserves one."""
    specs: list[JobSpec] = []

    def run_job(spec: JobSpec) -> int:
        specs.append(spec)
        Path(json.loads(spec.arguments[0])["answer"]).write_text(encode({}, {}, {}, {}))
        return 0

    monkeypatch.setattr(tune, "run_job", run_job)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    common = ["reduce", "-n", "4,3,2", "-o", str(tmp_path / "table.json")]
    several = ["--nnodes", "2", "--master-addr", "10.0.0.1"]
    assert tune.main(common) == 0
    assert tune.main([*common, *several]) == 0
    assert tune.main([*common, *several, "--master-port", "7000"]) == 0
    assert [spec.nproc for spec in specs] == [4, 3, 2] * 3
    assert [spec.master_port for spec in specs] == [
        *[None] * 3,
        *(DEFAULT_MASTER_PORT, DEFAULT_MASTER_PORT + 1, DEFAULT_MASTER_PORT + 2),
        *(7000, 7001, 7002),
    ]


def two_ports() -> tuple[ExitStack, int]:
    """Return a port that is reserved together with the next one until the stack is closed."""
    while True:
        with ExitStack() as stack, suppress(DistNetworkError):
            port = stack.enter_context(reserve_port()).port
            stack.enter_context(reserve_port(port + 1))
            return stack.pop_all(), port


@pytest.mark.timeout(90)
def test_one_launcher_on_each_host(tmp_path: Path, scaled: Callable[[float], float]) -> None:
    path = tmp_path / "table.json"
    held, port = two_ports()
    command = [sys.executable, "-m", "aiodist", "tune", "all_reduce", "-n", "2,1", "-s", "64"]
    command += ["--seconds", "0", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(port), "-o", str(path), "--node-rank"]
    nodes = [
        subprocess.Popen(
            [*command, str(node)],
            env={**os.environ, "AIODIST_HOST_ID": f"host {node}", "AIODIST_SECRET": "of the test"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        told = [node.communicate(timeout=scaled(60))[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        held.close()
    assert [node.returncode for node in nodes] == [0, 0], told
    assert "each rank lives on a host of its own" in told[0]  # with one on each node
    assert "all_reduce 64 bytes, 4 ranks, over 2 hosts: " in told[0]
    assert "node 0 writes the table" in told[1]
    found = json.loads(path.read_text())
    assert [row["hosts"] for row in found["hosts_rows"]["all_reduce"]] == [2]
    assert [row["ranks"] for row in found["rows"]["all_reduce"]] == [4, 2]
    assert found["shared_rows"]["all_reduce"] == []
