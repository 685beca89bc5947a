"""Collectives over several hosts under the simulated clock: formulas, and what the table chooses."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS
from aiodist.collectives.select import Choice
from aiodist.commands.main import main
from aiodist.errors import InvalidUsageError
from aiodist.launch.starting import USAGE_ERROR
from aiodist.simulate import (
    FLAT,
    NETWORKS,
    Network,
    Parameters,
    algorithms_over_hosts,
    hosts_of,
    selected_over_hosts,
    simulate_hosts,
)
from aiodist.simulate import hosts as over_hosts
from aiodist.simulate.board import FLAG, Memory, SimulatedShm
from aiodist.simulate.network import Rank

OPERATIONS = sorted({operation for operation, _ in INTER_HOST_RUNS})
SIZES = (1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)


@pytest.mark.parametrize(("operation", "name"), INTER_HOST_RUNS)
@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (9, 3), (7, 3), (8, 4)])
def test_every_rank_sends_other_hosts_the_bytes_of_the_formula(
    operation: str, name: str, ranks: int, per_host: int
) -> None:
    topology = hosts_of(ranks, per_host)
    if name == "columns" and not topology.is_even:
        return  # runs flat
    for nbytes in (0, 4, 4 * 1003, 4 << 20):
        assert simulate_hosts(operation, name, topology, nbytes, NETWORKS["10G"]).agrees, nbytes


@pytest.mark.parametrize("network", ["10G", "100G"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_table_chooses_well(operation: str, network: str) -> None:
    """Never beyond 1.25 times the fastest, a flat algorithm among them."""
    for ranks, per_host in ((4, 2), (16, 8), (16, 4)):
        topology = hosts_of(ranks, per_host)
        for nbytes in (0,) if operation == "barrier" else SIZES:
            chosen = selected_over_hosts(operation, topology, nbytes)
            seconds = {
                name: simulate_hosts(operation, name, topology, nbytes, NETWORKS[network]).seconds
                for name in algorithms_over_hosts(operation, topology)
            }
            fastest = min(seconds.values())
            assert seconds[chosen] <= 1.25 * fastest, (ranks, per_host, nbytes, chosen, seconds)


@pytest.mark.parametrize(("operation", "name"), [c for c in INTER_HOST_RUNS if c[1] != "leaders"])
def test_work_inside_a_host_overlaps_with_traffic_between_hosts(
    operation: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, nbytes = hosts_of(8, 4), 64 << 20
    pieces = simulate_hosts(operation, name, topology, nbytes, NETWORKS["10G"])
    monkeypatch.setattr(over_hosts, "_piece", lambda *_: 1 << 62)
    whole = simulate_hosts(operation, name, topology, nbytes, NETWORKS["10G"])
    assert pieces.agrees
    assert whole.agrees
    assert pieces.sent.nbytes == whole.sent.nbytes
    assert pieces.seconds < 0.85 * whole.seconds


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_hosts_with_different_numbers_of_ranks_run_columns_flat(
    operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selected_over_hosts(operation, hosts_of(7, 3), 1 << 20) == FLAT
    assert selected_over_hosts(operation, hosts_of(6, 3), 1 << 20) == "columns"
    with pytest.raises(InvalidUsageError, match="no algorithm 'columns' over these hosts"):
        simulate_hosts(operation, "columns", hosts_of(7, 3), 1 << 20, NETWORKS["10G"])
    assert main(["simulate", operation, "-n", "6,7", "-s", "1M", "--per-host", "3"]) == 0
    shown = capsys.readouterr().out
    assert "DIFFERS" not in shown
    assert shown.count("columns") == 1


def test_the_star_is_at_what_ranks_on_several_hosts_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # One or two ranks on each host: the table has a row of its own for them.
    assert selected_over_hosts("broadcast", hosts_of(8, 2), 256 << 10) == "leaders"
    assert selected_over_hosts("broadcast", hosts_of(16, 4), 256 << 10) == "stripes"
    assert [selected_over_hosts(name, hosts_of(8, 2), 4) for name in ("gather", "scatter")] == [
        FLAT,
        FLAT,
    ]
    pieces: list[int] = []
    real = over_hosts._program

    def record(operation: str, choice: Choice, *rest: Any) -> Any:
        pieces.append(choice.chunk)
        return real(operation, choice, *rest)

    monkeypatch.setattr(over_hosts, "_program", record)
    for nbytes in (4 << 20, 16 << 20):  # a chain has longer pieces from 8 MiB on
        simulate_hosts("broadcast", "chain", hosts_of(4, 2), nbytes, NETWORKS["10G"])
    assert pieces == [256 << 10, 1 << 20]


@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_operations_that_run_flat_have_a_table_too(
    operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", operation, "-n", "4", "-s", "1M", "--per-host", "2"]) == 0
    _, _, row = capsys.readouterr().out.strip().splitlines()
    assert row.split()[3] == "flat*"


L, OVERHEAD, G, R = 10.0, 2.0, 0.5, 0.25


def test_ranks_of_a_host_share_its_link_and_are_near_each_other() -> None:
    async def to_the_next_host(rank: Rank) -> None:
        if rank.rank < 2:
            await rank.send(rank.rank + 2, rank.memory(40))
        else:
            await rank.recv(rank.rank - 2, rank.memory(40))

    async def to_the_neighbour(rank: Rank) -> None:
        if rank.rank % 2 == 0:
            await rank.send(rank.rank + 1, rank.memory(40))
        else:
            await rank.recv(rank.rank - 1, rank.memory(40))

    far, near = Parameters(L, OVERHEAD, 0.0, G, R), Parameters(1.0, OVERHEAD, 0.0, G / 10, R)
    topology = hosts_of(4, 2)
    network = Network(4, far, topology=topology, intra_host=near)
    assert network.run(to_the_next_host) == OVERHEAD + L + 2 * 40 * G + OVERHEAD
    assert [rank.inter_host_traffic for rank in network.ranks] == [[1, 40], [1, 40], [0, 0], [0, 0]]
    network = Network(4, far, topology=topology, intra_host=near)
    assert network.run(to_the_neighbour) == OVERHEAD + 1.0 + 40 * G / 10 + OVERHEAD
    assert not any(sum(rank.inter_host_traffic) for rank in network.ranks)


def test_a_message_inside_a_host_has_the_overhead_and_the_eager_limit_of_messages_there() -> None:
    async def to_the_neighbour(rank: Rank) -> None:
        if rank.rank == 0:
            await rank.send(1, rank.memory(40))
        elif rank.rank == 1:
            await rank.recv(0, rank.memory(40))

    far, near = Parameters(L, OVERHEAD, 0.0, G, R), Parameters(1.0, 0.5, 0.0, G, R, eager=39)
    network = Network(4, far, topology=hosts_of(4, 2), intra_host=near)
    assert network.run(to_the_neighbour) == 0.5 + 3 * 1.0 + 40 * G + 0.5


def test_flags_take_their_time_and_a_chunk_is_free_when_all_have_let_go() -> None:
    memory = Memory(2)

    async def program(rank: Rank) -> None:
        shm = SimulatedShm(memory, rank.rank, rank)
        await shm.run(barrier_slots(rank.rank, 2), None)
        for step in range(5):
            if rank.rank == 0:
                while (waiting := shm.free(step)) is not None:
                    await waiting
                rank.work(40)
                shm.post(step)
            else:
                waiting = shm.posted(0, step)
                if waiting is not None:
                    await waiting
                rank.work(400)
                shm.release(step + 1)

    network = Network(2, Parameters(L, OVERHEAD, 0.0, G, R))
    network.run(program)
    reader = FLAG + 40 * R + FLAG + 400 * R  # met, the first chunk is there, and read
    writer = network.ranks[0].clock
    assert writer == pytest.approx(reader + FLAG + 40 * R)  # of four chunks, the first comes again
    assert network.ranks[1].clock == pytest.approx(reader + 4 * 400 * R)


def test_unknown_cases_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match="no algorithm 'rings' over these hosts"):
        simulate_hosts("all_reduce", "rings", hosts_of(4, 2), 4, NETWORKS["10G"])
    with pytest.raises(InvalidUsageError, match="leave out --per-host"):
        simulate_hosts("all_to_all", FLAT, hosts_of(4, 2), 4, NETWORKS["10G"])


def test_a_table_for_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "all_reduce", "-n", "8", "-s", "1M", "--per-host", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines[2:5]] == ["stripes*", "leaders", "flat"]
    assert lines[2].split()[-5:] == ["4", "1", "MiB", "1", "MiB"]
    assert main(["simulate", "--per-host", "0"]) == USAGE_ERROR
    assert "one at least" in capsys.readouterr().err


def test_runs_of_minutes_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert over_hosts.takes_minutes("all_reduce", "leaders", hosts_of(512, 8), 64 << 20)
    assert not over_hosts.takes_minutes("all_reduce", "leaders", hosts_of(256, 8), 1 << 20)
    monkeypatch.setattr(over_hosts, "MOST_STEPS", 10)
    assert main(["simulate", "all_reduce", "-n", "8", "-s", "1M", "--per-host", "4"]) == 0
    told = capsys.readouterr()
    assert [line.split()[3] for line in told.out.splitlines()[2:] if line] == ["stripes*", "flat"]
    left_out = "leaders on 8 ranks with 1 MiB is left out: it would take minutes"
    assert told.err == f"aiodist: all_reduce: {left_out}\n"
