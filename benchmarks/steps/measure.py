"""The measuring of steps, on one rank: rounds in which each backend has one step."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed

from aiodist.bench.measure import Repetitions, Samples
from aiodist.bench.peers.measured_peer import Place, UnsupportedError
from benchmarks.steps.bare import BareSum
from benchmarks.steps.cases import ALONE, DDP_STEP, FLOOR, GLOO, OURS, StepCase
from benchmarks.steps.learners import DataParallel, Learner, Sharded
from benchmarks.steps.trainee import Trainee, compare

_WARM_STEPS = 3
"""Not counted: DDP lays its buckets out anew after the first step, and connections open."""


def measure_steps(
    case: StepCase, rank: int, store: Any, effort: Repetitions, agree: Callable[[int], int]
) -> Samples:
    """Train the same model over each backend by turns, and check that it learns the same.

    ``store`` is torch's, for this case alone. Groups of both backends live in one process, as
    torch's ``new_group`` makes them. With DDP, a third one's gradients are added up by no library
    where that can be done. ``agree`` gives all ranks rank 0's number.
    """
    import aiodist.torch_backend  # noqa: F401  # where it is not installed, only on the path

    torch.distributed.init_process_group(GLOO, store=store, rank=rank, world_size=case.ranks)
    try:
        ours = torch.distributed.new_group(backend=OURS)
        wrap = DataParallel if case.kind == DDP_STEP else Sharded
        averaged = [Trainee(GLOO, wrap(case.model, None)), Trainee(OURS, wrap(case.model, ours))]
        if case.kind == DDP_STEP:
            with contextlib.suppress(UnsupportedError):
                store = torch.distributed.PrefixStore(FLOOR, store)
                total = BareSum(Place(rank, case.ranks, store))
                averaged.append(Trainee(FLOOR, DataParallel(case.model, None, total=total)))
            alone: Learner = DataParallel(case.model, None)
        else:
            alone = Learner(case.model)
        trainees = [*averaged, Trainee(ALONE, alone, silent=True)]
        samples = Samples({trainee.name: [] for trainee in trainees})
        for _ in range(_WARM_STEPS):
            start = time.perf_counter()
            _round(trainees, {})
            seconds = time.perf_counter() - start
        rounds = agree(effort.rounds(seconds))
        gc.collect()
        gc.disable()
        try:
            for number in range(rounds):
                _round(trainees if number % 2 == 0 else trainees[::-1], samples.intervals)
        finally:
            gc.enable()
        compare(averaged, case)
    finally:
        torch.distributed.destroy_process_group()
    return samples


def _round(trainees: Sequence[Trainee], intervals: dict[str, list[tuple[int, int]]]) -> None:
    for trainee in trainees:
        interval = trainee.step()
        if intervals:
            intervals[trainee.name].append(interval)
