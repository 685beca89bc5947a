"""The table names algorithms that exist, fits everywhere, and every row of it counts somewhere."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from aiodist.collectives import operations
from aiodist.collectives.cost import COSTS
from aiodist.collectives.select import (
    KIB,
    MANY,
    MIB,
    OVERSUBSCRIBED,
    RULES,
    SHARED_RULES,
    UNEVEN,
    Choice,
    Rule,
    select,
)

RANKS = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 64, 100, 4096]
NBYTES = sorted({0, 4, UNEVEN, *(1 << k for k in range(31)), *((1 << k) + 1 for k in range(31))})


@pytest.mark.parametrize("operation", RULES)
def test_every_case_has_an_algorithm_that_exists_and_serves_it(operation):
    chosen = set()
    for ranks in RANKS:
        for nbytes in NBYTES:
            choice = select(operation, ranks, nbytes)
            assert (operation, choice.algorithm) in COSTS
            assert choice.chunk > 0
            chosen.add(choice)
            needs_power = (operation, choice.algorithm) in {
                ("all_gather", "doubling"),
                ("reduce_scatter", "halving"),
            }
            assert not (needs_power and ranks & (ranks - 1))
    assert chosen == {rule.choice for rule in RULES[operation]}


def test_the_costs_know_exactly_the_operations_of_the_table():
    assert {operation for operation, _ in COSTS} == set(RULES)
    assert all(inspect.isfunction(getattr(operations, operation)) for operation in RULES)


@pytest.mark.parametrize("operation", ["gather", "scatter", "all_to_all"])
def test_blocks_that_may_be_uneven_never_go_where_they_must_be_equal(operation):
    for ranks in RANKS:
        for nbytes in NBYTES:
            assert select(operation, ranks, nbytes).algorithm in {"linear", "pairwise"}


def test_rules_are_read_from_the_top_and_know_locality():
    here, near, far = Choice("here"), Choice("near", 1), Choice("far", 2)
    rules = {
        "op": [
            Rule(4, 100, here, power_of_two=True),
            Rule(MANY, MANY, near, locality="host"),
            Rule(8, MANY, far),
        ]
    }
    assert select("op", 4, 100, None, rules) == here
    assert select("op", 3, 100, "host", rules) == near
    assert select("op", 4, 101, "host", rules) == near
    assert select("op", 4, 101, "network", rules) == far
    assert select("op", 4, 101, None, rules) == far
    with pytest.raises(LookupError, match="no op for 9 ranks and 1 bytes"):
        select("op", 9, 1, None, rules)
    with pytest.raises(KeyError):
        select("magic", 2, 1)


@pytest.mark.parametrize(
    ("ranks", "nbytes", "locality", "algorithm"),
    [
        (2, 4 * MIB + 1, OVERSUBSCRIBED, "exchange"),
        (3, 4 * MIB, OVERSUBSCRIBED, "stripes"),
        (3, 4 * MIB + 1, OVERSUBSCRIBED, "chain"),
        (6, 4 * MIB + 1, OVERSUBSCRIBED, "chain"),
        (7, 4 * MIB + 1, OVERSUBSCRIBED, "stripes"),
        (6, 4 * MIB + 1, None, "stripes"),
    ],
)
def test_a_chain_in_memory_where_ranks_outnumber_cores(ranks, nbytes, locality, algorithm):
    chosen = select("all_reduce", ranks, nbytes, locality, SHARED_RULES)
    assert chosen.algorithm == algorithm


@pytest.mark.parametrize(
    ("ranks", "nbytes", "algorithm"),
    [
        (3, 512 * KIB, "binomial"),
        (8, 512 * KIB, "binomial"),
        (8, 512 * KIB + 1, "chain"),
        (9, 64 * KIB + 1, "scatter_ring"),
    ],
)
def test_up_to_eight_ranks_broadcast_middle_sizes_down_a_tree(ranks, nbytes, algorithm):
    assert select("broadcast", ranks, nbytes).algorithm == algorithm


@pytest.mark.parametrize("size", [2, 3, 4, 9, 16])
def test_operations_ask_the_table(network, reduction, size):
    op = reduction(np.add, "i4")
    for length in (4, 4000):
        data = [np.full(length, rank + 1, "i4") for rank in range(size)]

        async def program(line, data=data, length=length):
            mine = memoryview(data[line.rank]).cast("B")
            outs = [memoryview(bytearray(4 * length)) for _ in range(size)]
            await operations.barrier(line)
            await operations.all_reduce(line, mine, op, line.scratch)
            await operations.all_to_all(line, [mine] * size, outs, line.scratch)
            await operations.scatter(line, 0, outs, mine, line.scratch)
            await operations.reduce(line, 1, mine, op, line.scratch)
            await operations.broadcast(line, 1, mine)
            outs[line.rank][:] = mine
            await operations.all_gather(line, outs, line.scratch)
            await operations.gather(line, 0, mine, outs, line.scratch)
            await operations.reduce_scatter(line, outs, mine, op, line.scratch)

        network(size, 1).run(program)
        summed = size * (size + 1) // 2
        assert all((array == summed * size * size).all() for array in data)
