"""A whole run, very small: two processes, all peers, two sizes."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from aiodist.bench.cases import Case
from benchmarks.cases import QUICK
from benchmarks.hosts import NoNamespacesError
from benchmarks.peers import LIBRARIES, make_peer
from benchmarks.processes import RankFailedError
from benchmarks.run import run
from benchmarks.steps.cases import Steps
from tests.benchmarks.conftest import LONG

pytestmark = pytest.mark.usefixtures("libuv")

# Training steps have runs of their own: `test_steps`.
TINY = replace(QUICK, sizes={2: (64, 65536)}, budget=0.0, fewest=2, most=2, steps=Steps())


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ranks")
def test_a_run_measures_every_peer_in_every_case() -> None:
    report = run(TINY, LIBRARIES)

    assert report.peers == LIBRARIES
    cases = {case for _, _, block in TINY.blocks() for case in block}
    measured = {(result.case, result.peer) for result in report.results if result.summary}
    assert measured == {(case, peer) for case in cases for peer in LIBRARIES}
    assert all(
        0 < result.summary.p10 <= result.summary.p90 for result in report.results if result.summary
    )


@pytest.mark.benchmarks
@pytest.mark.slow
def test_a_peer_that_gives_wrong_results_ends_the_run() -> None:
    suite = replace(TINY, operations=("barrier", "all_reduce"))

    with pytest.raises(
        RankFailedError, match=r"(?s)all_reduce.*WrongResultError: tests.*Idle.*must be"
    ):
        run(suite, ["tests.benchmarks.broken:Idle"])


@pytest.mark.benchmarks
@pytest.mark.slow
def test_a_peer_without_an_operation_leaves_a_gap_in_every_pass() -> None:
    suite = replace(TINY, operations=("all_reduce", "barrier"), sizes={1: (64,)}, passes=2)
    lines: list[str] = []
    report = run(suite, [limited := "tests.benchmarks.broken:Limited"], progress=lines.append)

    rows = dict(report.rows(1, "all_reduce"))
    assert rows[Case("all_reduce", 1, 64)][limited].unsupported == "it has only a barrier"
    barrier = dict(report.rows(1, "barrier"))[Case("barrier", 1, 0)][limited].summary
    assert barrier is not None
    assert barrier.repetitions >= 2
    told = [(line.split(":")[0], line.split(", ")[-2]) for line in lines]
    assert told == [
        ("1 ranks, all_reduce", "pass 1 of 2"),
        ("1 ranks, barrier", "pass 1 of 2"),
        ("1 ranks, barrier", "pass 2 of 2"),
        ("1 ranks, all_reduce", "pass 2 of 2"),
    ]


@pytest.mark.benchmarks
@pytest.mark.slow
def test_ranks_on_hosts_of_their_own() -> None:
    suite = replace(TINY, operations=("all_reduce",), sizes={2: (64,)})
    try:
        report = run(
            suite,
            ["gloo", "async-tcp", "floor-tcp"],
            apart=True,
            rate="1gbit",
            congestion="reno",
        )
    except NoNamespacesError as error:
        pytest.skip(str(error))
    finally:
        if shutil.which("ip"):
            left = subprocess.run(
                ["ip", "netns", "list"], capture_output=True, text=True, check=True
            )
            assert f"aiodist-bench-{os.getpid()}" not in left.stdout

    measured = {result.peer for result in report.results if result.summary}
    assert measured == {"gloo", "async-tcp", "floor-tcp"}
    assert "at 1gbit, each rank in a network namespace" in report.settings["interface"]
    assert report.settings["congestion"] == "reno"


@pytest.mark.benchmarks
@pytest.mark.slow
def test_without_a_library_hosts_of_two_ranks_are_right() -> None:
    suite = replace(
        TINY, operations=("all_reduce", "broadcast", "all_to_all"), sizes={6: (24, 6 * LONG)}
    )
    try:
        report = run(suite, ["floor-tcp"], apart=True, ranks_per_host=2)
    except NoNamespacesError as error:
        pytest.skip(str(error))

    measured = {result.case.operation for result in report.results if result.summary}
    assert measured == {"all_reduce", "broadcast", "all_to_all"}, report.results


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="no peer 'glue'; there are gloo, async"):
        make_peer("glue")
