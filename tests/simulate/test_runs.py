"""The real algorithms under the simulated clock: as the formulas say, one rank for all or all."""

from __future__ import annotations

import pytest

from aiodist.collectives.cost import COSTS
from aiodist.collectives.rule_tables import POWERS_OF_TWO
from aiodist.errors import InvalidUsageError
from aiodist.simulate import (
    ALGORITHMS,
    NETWORKS,
    Algorithm,
    algorithms_of,
    operations,
    selected,
    simulate,
)

NETWORK = NETWORKS["100G"]
RANKS = (1, 2, 3, 4, 5, 8, 13, 16)
SIZES = (0, 4, 64, 4 * 1024 * 13 * 5, 4 * 1000003, 8 << 20)
by_name = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.operation}-{a.name}")


def test_every_algorithm_is_here() -> None:
    assert {(each.operation, each.name) for each in ALGORITHMS} == set(COSTS)
    only_cube = {(each.operation, each.name) for each in ALGORITHMS if each.only_cube}
    assert only_cube == POWERS_OF_TWO


@by_name
@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_sends_the_bytes_of_the_formula(algorithm: Algorithm, ranks: int) -> None:
    for nbytes in SIZES:
        outcome = simulate(algorithm, ranks, nbytes, NETWORK, together=False)
        assert outcome is None or outcome.agrees, (outcome.sent, outcome.formula)


@by_name
@pytest.mark.parametrize("ranks", RANKS)
def test_one_rank_for_all_takes_the_same_time_as_all(algorithm: Algorithm, ranks: int) -> None:
    for nbytes in (0, 4 * ranks, 4 * ranks * 1000, 4 << 20):
        one = simulate(algorithm, ranks, nbytes, NETWORK)
        each = simulate(algorithm, ranks, nbytes, NETWORK, together=False)
        assert (one is None) == (each is None)
        if one is not None and each is not None:
            assert one.seconds == pytest.approx(each.seconds, rel=1e-12)
            assert one.sent == each.sent


@pytest.mark.parametrize("ranks", [4096, 65536])
def test_the_logarithmic_ones_at_scale(ranks: int) -> None:
    rounds = ranks.bit_length() - 1
    for operation, name, factor in (
        ("barrier", "dissemination", 1),
        ("all_reduce", "doubling", 1),
        ("all_reduce", "halving_doubling", 2),
        ("all_gather", "bruck", 1),
    ):
        (algorithm,) = (a for a in algorithms_of(operation) if a.name == name)
        outcome = simulate(algorithm, ranks, 4 * ranks, NETWORK)
        assert outcome is not None
        assert outcome.agrees
        assert outcome.sent.messages == factor * rounds
        assert outcome.seconds >= factor * rounds * (NETWORK.latency + 2 * NETWORK.overhead)


@pytest.mark.parametrize("ranks", [16, 64, 256, 1024])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("network", ["10G", "100G"])
def test_the_table_chooses_well_for_sizes_that_cannot_be_measured(
    operation: str, ranks: int, network: str
) -> None:
    """Never beyond 2.5 times the fastest: the networks differ, and the table is one for both."""
    for nbytes in (64 << 10, 1 << 20, 16 << 20, 256 << 20):
        choice = selected(operation, ranks, nbytes)
        seconds = {
            each.name: outcome.seconds
            for each in algorithms_of(operation)
            if (outcome := simulate(each, ranks, nbytes, NETWORKS[network], choice.chunk))
        }
        assert seconds[choice.algorithm] <= 2.5 * min(seconds.values()), (nbytes, choice, seconds)


def test_unknown_cases_are_refused() -> None:
    (chain,) = (a for a in algorithms_of("broadcast") if a.name == "chain")
    (ring,) = (a for a in algorithms_of("broadcast") if a.name == "scatter_ring")
    (halving,) = (a for a in algorithms_of("reduce_scatter") if a.name == "halving")
    with pytest.raises(InvalidUsageError, match="no elements"):
        simulate(chain, 4, 3, NETWORK)
    assert simulate(ring, 4096, 16 << 20, NETWORK) is None  # too many messages
    assert simulate(halving, 6, 24, NETWORK) is None  # for powers of two only
    with pytest.raises(InvalidUsageError, match="no operation is called 'reverse'; there are ba"):
        algorithms_of("reverse")
    assert "all_to_all" in operations()
