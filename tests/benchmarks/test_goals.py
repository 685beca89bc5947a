"""Goals beside made-up results: met, missed, out of reach, not measured."""

from __future__ import annotations

import pytest

from aiodist.bench.cases import KIB, MIB, Case
from benchmarks.cases import FULL, STANDARD
from benchmarks.goals import MET, MET_SO_FAR, MISSED, UNMEASURED, Goal, goals
from benchmarks.page_goals import goal_rows, goal_words
from benchmarks.page_mpi import overhead_rows
from benchmarks.peers import LABELS
from benchmarks.results import Report, Result
from benchmarks.stats import Summary, summarize
from benchmarks.steps.cases import ALONE, GLOO, LARGE, OURS, StepCase
from benchmarks.steps.cases import FLOOR as STEP_FLOOR
from benchmarks.steps.results import StepResult
from benchmarks.targets import MIDDLE, TARGETS, StepTarget, Target

PEERS = ("gloo", "async", "blocking", "floor", "openmpi", "openmpi-aiodist")


def report(
    times: dict[tuple[str, int, int], dict[str, float]],
    steps: tuple[StepResult, ...] = (),
    interface: str = "lo",
    peers: tuple[str, ...] = PEERS,
) -> Report:
    """Of medians by (operation, ranks, bytes), then by peer."""
    results = tuple(
        Result(Case(*case), peer, Summary(median, median, median, 9, median, median))
        for case, row in times.items()
        for peer, median in row.items()
    )
    return Report({}, {"interface": interface}, peers, results, steps)


def goal(report: Report, operation: str, against: str = "gloo", **wanted: object) -> Goal:
    """The one goal of that operation whose target has all that is ``wanted``."""
    (found,) = [
        each
        for each in goals(report)
        if isinstance(each.target, Target)
        and (each.target.operation, each.target.against) == (operation, against)
        and all(getattr(each.target, name) == value for name, value in wanted.items())
    ]
    return found


def test_a_goal_is_met_at_its_limit_and_missed_beyond_it() -> None:
    for blocking, verdict in ((5.0, MET), (5.1, MISSED)):
        of = report({("barrier", 2, 0): {"gloo": 100.0, "blocking": blocking, "async": 90.0}})
        assert goal(of, "barrier", ranks=2).verdict == verdict


def test_the_worst_size_and_api_decide() -> None:
    times = {
        ("all_reduce", 2, size): {"gloo": 100.0, "async": 10.0, "blocking": 15.0, "floor": 2.0}
        for size in MIDDLE
    }
    of = report(times)
    assert goal(of, "all_reduce", sizes=MIDDLE).verdict == MET

    times["all_reduce", 2, 64 * KIB]["async"] = 21.0
    times["all_reduce", 2, 64] = {"gloo": 1.0, "async": 10.0}  # of no size of the goal
    found = goal(report(times), "all_reduce", sizes=MIDDLE)

    assert found.verdict == MISSED
    assert found.worst is not None
    assert (found.worst.ratio, found.worst.peer) == (0.21, "async")
    assert found.worst.case == Case("all_reduce", 2, 64 * KIB)
    assert found.worst.floor == 0.02
    assert not found.out_of_reach


def test_a_goal_that_the_bare_program_misses_is_out_of_reach() -> None:
    case = ("all_reduce", 2, 100 * MIB)
    for floor, beyond in ((19.0, False), (23.0, True)):
        of = report({case: {"gloo": 100.0, "async": 30.0, "blocking": 31.0, "floor": floor}})
        found = goal(of, "all_reduce", sizes=(100 * MIB,))
        assert (found.verdict, found.out_of_reach) == (MISSED, beyond)
        rows = "\n".join(goal_rows(of))
        assert (f"| 0.2 | 0.31 | 100 MiB, blocking | {floor / 100:.2f} | missed" in rows) is True
        assert ("missed; out of reach here" in rows) == beyond


def test_sizes_without_figures_are_named() -> None:
    of = report({("broadcast", 2, MIB): {"gloo": 100.0, "async": 10.0, "blocking": 15.0}})
    found = goal(of, "broadcast", ranks=2)

    assert (found.verdict, found.missing) == (MET_SO_FAR, (100 * MIB,))
    row = (
        "| 0.5 | 0.15 | 1 MiB, blocking | – | met where measured; figures are missing at 100 MiB |"  # noqa: RUF001
    )
    assert row in "\n".join(goal_rows(of))


def test_an_api_without_figures_leaves_a_goal_open() -> None:
    of = report({("broadcast", 4, 64): {"gloo": 100.0, "async": 10.0}})

    assert goal(of, "broadcast", ranks=4).verdict == MET_SO_FAR


def test_a_run_without_mpi_or_steps_says_that_it_did_not_measure_them() -> None:
    of = report({("all_reduce", 2, 4): {"gloo": 100.0, "blocking": 4.0}})

    for size in ((MIB, 4 * MIB, 16 * MIB), (100 * MIB,)):
        assert goal(of, "all_reduce", "openmpi", sizes=size).verdict == UNMEASURED
    rows = list(goal_rows(of))
    assert len(rows) == 2 + len(list(goals(of)))
    assert all(row.endswith((" met |", f" {UNMEASURED} |")) for row in rows[2:])
    assert any("ddp_step" in row and row.endswith(f" {UNMEASURED} |") for row in rows)
    assert f"1 met, {len(rows) - 3} not measured" in goal_words(of)


def test_open_mpi_is_compared_with() -> None:
    case = ("all_reduce", 2, 100 * MIB)
    of = report({case: {"gloo": 100.0, "async": 16.0, "blocking": 18.0, "openmpi": 50.0}})

    found = goal(of, "all_reduce", "openmpi", sizes=(100 * MIB,))
    assert found.verdict == MISSED
    assert found.worst is not None
    assert found.worst.ratio == 0.36


@pytest.mark.parametrize(("ours", "verdict"), [(45.0, MET), (46.0, MISSED)])
def test_communication_of_training_steps(ours: float, verdict: str) -> None:
    times = {GLOO: summarize([100.0]), OURS: summarize([ours])}
    step = StepResult(StepCase(LARGE, 2), {**times, ALONE: summarize([1.0])}, times)

    ddp, fsdp = (g for g in goals(report({}, (step,))) if isinstance(g.target, StepTarget))
    assert (ddp.verdict, fsdp.verdict) == (verdict, UNMEASURED)
    assert any(f"| {ours / 100:.2f} |" in row for row in goal_rows(report({}, (step,))))


@pytest.mark.parametrize(("floor", "beyond"), [(45.0, False), (46.0, True)])
def test_a_step_that_no_library_reaches_is_out_of_reach(floor: float, beyond: bool) -> None:
    times = {GLOO: summarize([100.0]), OURS: summarize([70.0]), STEP_FLOOR: summarize([floor])}
    step = StepResult(StepCase(LARGE, 2), {**times, ALONE: summarize([1.0])}, times)
    of = report({}, (step,))

    found, _ = (each for each in goals(of) if isinstance(each.target, StepTarget))
    assert found.verdict == MISSED
    assert found.out_of_reach == beyond
    (row,) = [row for row in goal_rows(of) if "ddp_step" in row]
    assert f"| {floor / 100:.2f} |" in row
    assert ("out of reach here" in row) == beyond


def test_a_run_between_hosts_has_goals_of_its_own() -> None:
    times = {("all_reduce", 2, 4): {"gloo": 100.0, "async-tcp": 80.0, "blocking-tcp": 95.0}}
    of = report(
        times, interface="veth, each rank in a network namespace", peers=("gloo", "async-tcp")
    )

    assert {each.target.where for each in goals(of)} == {"two hosts"}
    assert goal(of, "all_reduce").verdict == MISSED
    assert "bench-network" not in goal_words(of)
    assert "bench-network" in goal_words(report(times))


@pytest.mark.parametrize(("floor", "beyond"), [(85.0, False), (92.0, True)])
def test_between_hosts_bare_tcp_marks_goals_out_of_reach(floor: float, beyond: bool) -> None:
    row = {"gloo": 100.0, "async-tcp": 95.0, "blocking-tcp": 80.0, "floor-tcp": floor, "floor": 1.0}
    of = report(
        {("send_recv", 2, MIB): row},
        interface="veth, each rank in a network namespace",
        peers=tuple(row),
    )

    found = goal(of, "send_recv")
    assert (found.verdict, found.out_of_reach) == (MISSED, beyond)
    assert f"1 MiB, async, TCP | {floor / 100:.2f} | missed" in "\n".join(goal_rows(of))
    assert ("out of reach here" in "\n".join(goal_rows(of))) == beyond
    assert "one TCP connection" in goal_words(of)
    assert "rings of chunks" not in goal_words(of)


def test_a_place_out_of_reach_hides_no_miss_within_reach() -> None:
    measured = ((100 * MIB, 120.0, 92.0), (64 * KIB, 95.0, 10.0), (256, 93.0, 10.0), (4, 5.0, 1.0))
    times = {
        ("send_recv", 2, size): {
            "gloo": 100.0,
            "async-tcp": 89.0 if ours > 90 else ours,
            "blocking-tcp": ours,
            "floor-tcp": floor,
        }
        for size, ours, floor in measured
    }
    of = report(
        times,
        interface="veth, each rank in a network namespace",
        peers=("gloo", "async-tcp", "blocking-tcp", "floor-tcp"),
    )

    rows = [row for row in goal_rows(of) if row.startswith("| send_recv")]
    assert len(rows) == 2
    assert rows[0].endswith("| 1.20 | 100 MiB, blocking, TCP | 0.92 | missed; out of reach here |")
    assert rows[1].endswith("| 0.95 | 64 KiB, blocking, TCP | 0.10 | missed |")
    assert "1 of those missed" in goal_words(of)


def test_every_goal_is_about_cases_of_the_suites_and_peers_there_are() -> None:
    for suite in (STANDARD, FULL):
        cases = {case for _, _, block in suite.blocks() for case in block}
        steps = set(suite.steps.cases())
        for target in TARGETS:
            if isinstance(target, StepTarget):
                assert StepCase(target.model, target.ranks) in steps
                continue
            assert {target.against, *target.peers} <= set(LABELS)
            for size in target.sizes or ():
                assert Case(target.operation, target.ranks, size) in cases


def test_the_overhead_of_backend_mpi_is_shown_where_measured() -> None:
    assert list(overhead_rows(report({("barrier", 2, 0): {"gloo": 1.0}}))) == []
    of = report(
        {
            ("all_reduce", 2, 4): {"openmpi": 2.0, "openmpi-aiodist": 12.0},
            ("all_reduce", 2, MIB): {"openmpi": 100.0, "openmpi-aiodist": 130.0},
            ("barrier", 2, 0): {"openmpi": 1.0, "openmpi-aiodist": 11.0},
        }
    )
    _, _, row, barrier = overhead_rows(of)

    small, large = "4 B | 2.00 us | 12.0 us | 10.0 us", "1 MiB | 100 us | 130 us | 1.30"
    assert row == f"| Open MPI | 2 | all_reduce | {small} | {large} |"
    assert barrier.startswith("| Open MPI | 2 | barrier | – | 1.00 us | 11.0 us | 10.0 us |")  # noqa: RUF001
