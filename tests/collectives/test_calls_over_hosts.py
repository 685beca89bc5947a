"""The algorithms over several hosts, over messages alone: results, inputs, and what crosses hosts."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from aiodist.collectives import calls
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS, HostsCase, inter_host_traffic
from aiodist.collectives.host_topology import HostTopology, SubChannel
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import offsets_of
from aiodist.collectives.select import HOSTS_RULES, MANY, Choice, Rule

SHAPES = ["aabb", "abab", "aaabb", "aaab", "abbacc", "aabbccdd", "aaabbbccc", "abbbb"]
ITEM = 4


def only(operation, name, piece):
    """A table that has nothing but ``name``."""
    return {operation: [Rule(MANY, MANY, Choice(name, piece))]}


def lengths_for(operation, size):
    if operation == "barrier":
        return [[]]
    if operation in ("all_gather", "reduce_scatter"):
        return [[ITEM * ((rank * 7) % 5) for rank in range(size)], [ITEM * 1000] * size]
    return [[0], [ITEM], [ITEM * 1003]]


def program_of(operation, name, piece, lengths, root, data, outs, op):
    """Runs one rank; ``data[rank]`` is its input, ``outs[rank]`` where blocks go."""
    rules = only(operation, name, piece)
    starts = offsets_of(lengths)

    def cut(memory):
        return [memory[a:b] for a, b in pairwise(starts)]

    async def program(line):
        view = MultiHostContext(line, data["places"], None, line.scratch)
        mine = memoryview(data[line.rank]).cast("B")
        if operation == "barrier":
            await calls.Barrier().over_hosts(view)
        elif operation == "broadcast":
            await calls.Broadcast(root, mine).over_hosts(view, rules)
        elif operation == "reduce":
            await calls.Reduce(root, mine, op).over_hosts(view, rules)
        elif operation == "all_reduce":
            await calls.AllReduce(mine, op).over_hosts(view, rules)
        elif operation == "all_gather":
            blocks = cut(outs[line.rank])
            blocks[line.rank][:] = cut(mine)[line.rank]
            await calls.AllGather(blocks).over_hosts(view, rules)
        else:
            call = calls.ReduceScatter(cut(mine), outs[line.rank], op)
            await call.over_hosts(view, rules)

    return program


def noting(line, shape, crossed):
    """``line``, which notes by rank what it sends to other hosts."""
    send = line.send

    def note(dst, data):
        if shape[line.rank] != shape[dst]:
            crossed[line.rank].append(len(data))
        return send(dst, data)

    line.send = note
    return line


def check(operation, lengths, root, given, data, outs, size):
    total = sum(given[rank] for rank in range(size))
    starts = [start // ITEM for start in offsets_of(lengths)]
    for rank in range(size):
        changed = (
            rank == root if operation == "reduce" else operation in {"all_reduce", "broadcast"}
        )
        wanted = given[root] if operation == "broadcast" else total
        assert (data[rank] == (wanted if changed else given[rank])).all()
        out = np.frombuffer(outs[rank], "i4")
        if operation == "all_gather":
            for other in range(size):
                part = slice(starts[other], starts[other + 1])
                assert (out[part] == given[other][part]).all()
        elif operation == "reduce_scatter":
            assert (out == total[starts[rank] : starts[rank + 1]]).all()


@pytest.mark.parametrize(("seed", "piece"), [(None, MANY), (1, MANY), (1, 900), (2, 150)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("operation", "name"), INTER_HOST_RUNS)
def test_results_and_what_crosses(network, reduction, operation, name, shape, seed, piece):
    size, topology = len(shape), HostTopology(shape)
    op = reduction(np.add, "i4")
    for lengths in lengths_for(operation, size):
        for root in range(size) if operation in ("broadcast", "reduce") else (0,):
            count = sum(lengths) // ITEM
            given = [np.arange(count, dtype="i4") * (rank + 1) + rank for rank in range(size)]
            data = {rank: array.copy() for rank, array in enumerate(given)} | {"places": topology}
            own = operation == "reduce_scatter"
            outs = [memoryview(bytearray(lengths[r] if own else sum(lengths))) for r in range(size)]
            crossed = defaultdict(list)
            program = program_of(operation, name, piece, lengths, root, data, outs, op)
            network(size, seed).run(lambda line: program(noting(line, shape, crossed)))  # noqa: B023
            check(operation, lengths, root, given, data, outs, size)
            if name == "columns" and not topology.is_even:
                continue  # it ran flat
            itemsize = 1 if operation == "broadcast" else ITEM
            for rank in range(size):
                formula = inter_host_traffic(
                    operation,
                    name,
                    HostsCase(topology, rank, lengths, root, itemsize, piece=piece),
                )
                assert (len(crossed[rank]), sum(crossed[rank])) == formula


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("shape", [*SHAPES, "aabbccddeeffgg"])
def test_all_to_all_sends_each_block_to_another_host_once(network, shape, seed):
    size, topology = len(shape), HostTopology(shape)
    lengths = [[(7 * src + 3 * dst) % 5 for dst in range(size)] for src in range(size)]
    inputs = [
        [memoryview(bytearray([16 * src + dst] * lengths[src][dst])) for dst in range(size)]
        for src in range(size)
    ]
    outputs = [
        [memoryview(bytearray(lengths[src][dst])) for src in range(size)] for dst in range(size)
    ]
    crossed = defaultdict(list)

    async def program(line):
        view = MultiHostContext(line, topology, None, line.scratch)
        await calls.AllToAll(inputs[line.rank], outputs[line.rank]).over_hosts(view)

    network(size, seed).run(lambda line: program(noting(line, shape, crossed)))
    for rank in range(size):
        assert outputs[rank] == [inputs[src][rank] for src in range(size)]
        elsewhere = [dst for dst in range(size) if shape[dst] != shape[rank]]
        assert sorted(crossed[rank]) == sorted(lengths[rank][dst] for dst in elsewhere)


@pytest.mark.parametrize(
    ("shape", "senders"), [("aabb", {0}), ("aaabb", {0}), ("aaabbb", {0, 1, 2})]
)
def test_hosts_with_pairs_broadcast_middle_sizes_by_one_rank_each(network, shape, senders):
    size, topology = len(shape), HostTopology(shape)
    data = [np.full(256 << 10, rank + 1, "u1") for rank in range(size)]
    crossed = defaultdict(list)

    async def program(line):
        view = MultiHostContext(line, topology, None, line.scratch)
        await calls.Broadcast(0, memoryview(data[line.rank])).over_hosts(view)

    network(size).run(lambda line: program(noting(line, shape, crossed)))
    assert all((each == 1).all() for each in data)
    assert set(crossed) == senders


@pytest.mark.parametrize(("oversubscribed", "sent"), [(True, 1 << 20), (False, 256 << 10)])
def test_hosts_whose_ranks_share_cores_broadcast_a_mebibyte_in_whole_messages(
    network, oversubscribed, sent
):
    shape = "aabbccdd"
    topology = HostTopology(shape, oversubscribed=oversubscribed)
    data = [np.full(1 << 20, rank + 1, "u1") for rank in range(8)]
    crossed = defaultdict(list)

    async def program(line):
        view = MultiHostContext(line, topology, None, line.scratch)
        await calls.Broadcast(0, memoryview(data[line.rank])).over_hosts(view)

    network(8).run(lambda line: program(noting(line, shape, crossed)))
    assert all((each == 1).all() for each in data)
    assert {length for lengths in crossed.values() for length in lengths} == {sent}
    assert sum(map(sum, crossed.values())) == 3 << 20


def test_the_formulas_know_exactly_the_algorithms_of_the_table():
    named = {
        (operation, r.choice.algorithm) for operation, rules in HOSTS_RULES.items() for r in rules
    }
    assert named == set(INTER_HOST_RUNS)


def test_places_are_in_the_order_of_first_ranks():
    topology = HostTopology("babcaa")
    assert topology.hosts == ((0, 2), (1, 4, 5), (3,))
    assert [topology.host_of(rank) for rank in range(6)] == [0, 1, 0, 2, 1, 1]
    assert topology.columns == 1
    assert topology.column(0) == [0, 1, 3]
    assert not topology.is_even
    assert HostTopology("abba").is_even


def test_a_part_numbers_its_members_anew(network):
    async def program(line):
        if line.rank == 1:
            return
        part = SubChannel(line, [3, 0, 2])
        assert (part.rank, part.size) == ([3, 0, 2].index(line.rank), 3)
        sent = part.send((part.rank + 1) % 3, memoryview(bytes([part.rank])))
        got = await part.recv_new((part.rank - 1) % 3)
        await sent
        assert got[0] == (part.rank - 1) % 3

    network(4).run(program)
