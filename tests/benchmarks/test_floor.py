"""What the machine does with no library: right, of two ranks, and never waiting for ever."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from torch.distributed import HashStore

from benchmarks.cases import QUICK, Case
from benchmarks.operations import Call
from benchmarks.peers.base import Place, UnsupportedError
from benchmarks.peers.floor import CHUNK, DEPTH, Floor, Shared
from benchmarks.rank import empty
from benchmarks.run import run
from benchmarks.steps.cases import Steps

WRAPPED = 4 * (DEPTH * CHUNK * 2 + 6)
"""Bytes of a tensor, half of which goes round a ring and leaves a rest."""


@pytest.mark.slow
@pytest.mark.usefixtures("libuv")
def test_every_operation_is_right_at_every_length() -> None:
    suite = replace(QUICK, sizes={2: (4, 12, 1000, WRAPPED)}, budget=0.0, fewest=2, most=2)

    report = run(replace(suite, steps=Steps()), ["floor", "floor-shared"])

    cases = {case for _, _, block in suite.blocks() for case in block}
    measured = {(result.case, result.peer) for result in report.results if result.summary}
    assert {case for case, peer in measured if peer == "floor"} == cases
    assert {case for case, peer in measured if peer == "floor-shared"} == {
        case for case in cases if case.operation == "all_reduce"
    }


@pytest.mark.parametrize("kind", [Floor, Shared])
def test_more_ranks_are_refused(kind: type[Floor]) -> None:
    peer = kind()
    peer.open(Place(0, 4, HashStore()))
    call = Call(Case("all_reduce", 4, 64), 0, empty)

    with pytest.raises(UnsupportedError, match="it is of two ranks"):
        peer.turn(call, range(1))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no memfd on this system")
def test_a_rank_that_waits_in_vain_says_so() -> None:
    store = HashStore()
    store.set("rings, mapped by 1", "")  # and no word of it after that
    peer = Floor(limit=0.05)
    peer.open(Place(0, 2, store))

    with pytest.raises(TimeoutError, match=r"floor: the other rank has not come in 0\.05 s"):
        peer.barrier()


def test_a_case_of_the_wrapped_size_is_what_it_says() -> None:
    half = Case("all_gather", 2, WRAPPED).count // 2

    assert half > DEPTH * CHUNK
    assert half % CHUNK
