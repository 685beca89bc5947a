"""What the machine does with no library: right, and never waiting for ever."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from torch.distributed import HashStore

from aiodist.bench.cases import Case
from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import Place, UnsupportedError
from benchmarks.cases import QUICK, Suite
from benchmarks.peers.floor import DEPTH, EXCHANGED, PART, Floor
from benchmarks.peers.floor_shared import FloorShared
from benchmarks.peers.floor_tcp import WHOLE
from benchmarks.rank import empty
from benchmarks.results import Report
from benchmarks.run import run
from benchmarks.steps.cases import Steps
from tests.benchmarks.conftest import LONG, WRAPPED


def check(report: Report, suite: Suite, ranks: int) -> None:
    """``suite`` was measured, and ranks measure what is right only."""
    cases = {case for _, _, block in suite.blocks() for case in block}
    measured = {(result.case, result.peer) for result in report.results if result.summary}
    assert cases <= {case for case, peer in measured if peer == "floor"}
    assert cases & {case for case, peer in measured if peer == "floor-shared"} == {
        case for case in cases if case.operation == "all_reduce" and ranks == 2
    }


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ranks")
def test_every_operation_of_two_ranks_is_right() -> None:
    """Over memory and over TCP, in one run: starting ranks is what costs."""
    sizes = {2: (4, 24, LONG, WRAPPED)}
    suite = replace(QUICK, sizes=sizes, budget=0.0, fewest=2, most=2, steps=Steps())
    report = run(suite, ["floor", "floor-shared", "floor-tcp"])
    check(report, replace(QUICK, sizes={2: (4, 24, WRAPPED)}), 2)

    suite = replace(QUICK, sizes={2: (4, 24, LONG)})
    cases = {case for _, _, block in suite.blocks() for case in block}
    over_tcp = (each for each in report.results if each.summary and each.peer == "floor-tcp")
    assert cases <= {each.case for each in over_tcp}
    assert Case("reduce_scatter", 2, LONG) in cases
    assert LONG // 4 > WHOLE


@pytest.mark.benchmarks
@pytest.mark.slow
@pytest.mark.usefixtures("libuv")
def test_every_operation_of_three_ranks_is_right() -> None:
    sizes = {3: (24, WRAPPED)}
    suite = replace(QUICK, sizes=sizes, budget=0.0, fewest=2, most=2, steps=Steps())
    check(run(suite, ["floor", "floor-shared"]), suite, 3)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no memfd on this system")
def test_more_ranks_than_two_do_not_add_halves() -> None:
    store = HashStore()
    for rank in (1, 2):
        store.set(f"rings, mapped by {rank}", "")
    peer = FloorShared()
    peer.open(Place(0, 3, store))
    call = Call(Case("all_reduce", 3, 64), 0, empty)

    with pytest.raises(UnsupportedError, match="it is of two ranks"):
        peer.turn(call, range(1))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no memfd on this system")
def test_a_rank_whose_wait_times_out_says_so() -> None:
    store = HashStore()
    store.set("rings, mapped by 1", "")  # and no word of it after that
    peer = Floor(limit=0.05)
    peer.open(Place(0, 2, store))

    with pytest.raises(TimeoutError, match=r"floor: another rank has not come in 0\.05 s"):
        peer.barrier()


def test_a_tensor_that_is_wrapped_is_one_that_ranks_divide() -> None:
    for ranks in (2, 3):
        part, rest = divmod(Case("all_gather", ranks, WRAPPED).count, ranks)
        assert not rest
        assert part > DEPTH * PART
        assert part % PART
        assert part > EXCHANGED
