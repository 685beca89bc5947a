"""Training steps over both backends: measured, compared, shown."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from rich.console import Console

from aiodist.bench.measure import Samples
from aiodist.bench.pattern import WrongResultError
from benchmarks.cases import FULL, QUICK, STANDARD
from benchmarks.page import render_tables
from benchmarks.results import Report, load, save
from benchmarks.run import run
from benchmarks.steps.cases import (
    ALONE,
    FLOOR,
    FSDP_STEP,
    GLOO,
    OURS,
    STEPS,
    TURNS,
    Model,
    StepCase,
    Steps,
)
from benchmarks.steps.learners import DataParallel, Learner, Sharded
from benchmarks.steps.results import StepResult, step_result, step_rows
from benchmarks.steps.trainee import Trainee, compare
from benchmarks.table import print_report

TINY = Model("a tiny one", layers=2, width=8, rows=4)
CASE = StepCase(TINY, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ranks")
def test_a_run_trains_over_both_backends_and_shows_it(tmp_path: Path) -> None:
    steps = Steps((TINY,), (2,), budget=0.0, fewest=2, most=2)
    report = run(replace(QUICK, operations=(), steps=steps))

    assert [found.case for found in report.steps] == [CASE, replace(CASE, kind=FSDP_STEP)]
    for found, turns in zip(report.steps, (TURNS, (GLOO, OURS, ALONE)), strict=True):
        assert {name: times.repetitions for name, times in found.steps.items()} == dict.fromkeys(
            turns, 2
        )
        assert all(times.median > 0 for times in found.steps.values())
    save(report, tmp_path / "results.json")
    assert load(tmp_path / "results.json") == report
    assert "| DDP | a tiny one | 2 |" in render_tables(report)
    assert "| FSDP2 | a tiny one | 2 |" in render_tables(report)


def test_every_suite_has_the_large_model_but_the_quick_one() -> None:
    for suite in (STANDARD, FULL):
        assert {case.ranks for case in suite.steps.cases()} == {2, 4}
        assert max(model.parameters for model in suite.steps.models) == 25_178_112
    assert [case.model.parameters for case in QUICK.steps.cases()] == [263_168] * len(STEPS)


def samples(step: int) -> Samples:
    """Return samples of two rounds.

    A step takes ``step`` us with Gloo, half of that with aiodist, 400 us bare and 100 us alone.
    """
    begin = {GLOO: step, OURS: step // 2, FLOOR: 400, ALONE: 100}
    return Samples({name: [(0, us * 1000), (7000, 7000 + us * 1000)] for name, us in begin.items()})


@pytest.fixture
def result() -> StepResult:
    return step_result(CASE, [samples(900), samples(1000)])


def test_a_step_takes_as_long_as_its_slowest_rank(result: StepResult) -> None:
    medians = {name: times.median for name, times in result.steps.items()}

    assert medians == {GLOO: 1000.0, OURS: 500.0, FLOOR: 400.0, ALONE: 100.0}
    assert result.ratio(OURS) == 0.5


def test_communication_is_the_time_beyond_a_silent_step(result: StepResult) -> None:
    assert {name: times.median for name, times in result.communication.items()} == {
        GLOO: 900.0,
        OURS: 400.0,
        FLOOR: 300.0,
    }
    assert result.communication_ratio(OURS) == pytest.approx(4 / 9)
    unmeasurable = step_result(CASE, [samples(50)])
    assert unmeasurable.communication_ratio(OURS) is None


def test_where_the_bare_sum_cannot_run_the_rest_is_measured() -> None:
    measured = samples(900)
    del measured.intervals[FLOOR]
    result = step_result(CASE, [measured])

    assert result.communication_ratio(FLOOR) is None
    assert [name for name, _, _ in step_rows(result)] == [
        "step, gloo",
        "step, aiodist",
        "step without communication",
        "communication, gloo",
        "communication, aiodist",
    ]


def test_terminal_and_page_show_steps_and_communication(result: StepResult) -> None:
    effort = {"budget": 0.2, "fewest": 3, "most": 50}
    settings = {"suite": "quick", "effort": effort, "seconds": 4, "interface": "lo"}
    machine = {
        "date": "",
        "cpu": "",
        "cores": 2,
        "memory_gib": 1,
        "system": "",
        "load_average": [0.0, 0.0, 0.0],
        "python": "",
        "versions": {},
        "aiodist": {"version": "", "commit": ""},
    }
    report = Report(machine, {**settings, "pinned": False}, ("gloo",), (), (result,))
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))

    assert "ddp_step, 2 ranks, a tiny one" in out.getvalue()
    assert "communication, aiodist" in out.getvalue()
    assert "communication, no library" in out.getvalue()
    page = render_tables(report)
    assert "500 us (0.50)<br>" in page
    assert "400 us (0.44)<br>" in page
    assert "300 us (0.33)<br>" in page
    assert "a tiny one: 2 linear layers of 8 by 8, 4 rows of input a rank." in page


def _average(
    group: dist.ProcessGroup, bucket: dist.GradBucket, factor: float, last: float
) -> torch.futures.Future[torch.Tensor]:
    """What DDP does by itself, but times ``factor``, and ``last`` too much in one place."""
    mean = bucket.buffer() / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    mean *= factor
    mean[-1] += last
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(mean)
    return done


def _compare_in_rank(rank: int, store: str) -> None:
    import aiodist.torch_backend  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = dist.new_group(backend="aiodist")

    def trained(second: bool, silent: bool = False, steps: int = 3) -> Trainee:
        name = "second" if second else "first"
        trainee = Trainee(name, DataParallel(TINY, group), silent=silent)
        for _ in range(steps):
            trainee.step()
        return trainee

    compare([trained(False), trained(True)], "a case")
    # Rank 1 finds its parameters unlike rank 0's, and rank 0 the losses unlike the first's.
    with pytest.raises(WrongResultError, match=r"a case, second: ranks 0|the losses of step 1"):
        compare([trained(False), trained(True, silent=True)], "a case")
    last = trained(True, steps=2)
    last.losses.append(0.0)
    with pytest.raises(WrongResultError, match="first and second: the losses of step 2 are"):
        compare([trained(False), last], "a case")
    for factor, much in ((1.0, 0.0), (1 + 2**-21, 0.0), (1.0, 1e-6)):
        learner = DataParallel(TINY, group)
        # A lambda: DDP compares annotations with classes, and those of this file are strings.
        learner.parallel.register_comm_hook(
            (factor, much), lambda state, bucket: _average(group, bucket, *state)
        )
        last = Trainee("second", learner)
        for _ in range(3):
            last.step()
        if (factor, much) == (1.0, 0.0):
            compare([trained(False), last], "a case")
            continue
        with pytest.raises(WrongResultError, match=r"second: \d+ of 144 gradients are no mean"):
            compare([trained(False), last], "a case")
    compare([Trainee("sharded", Sharded(TINY, group))], "a case")
    with pytest.raises(WrongResultError, match="alone: 144 of 144 gradients are no mean"):
        compare([Trainee("alone", Learner(TINY))], "a case")
    dist.destroy_process_group()


@pytest.mark.benchmarks
@pytest.mark.slow
def test_backends_that_learn_otherwise_are_noticed(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_compare_in_rank, (str(tmp_path / "store"),), nprocs=2)
