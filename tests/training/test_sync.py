"""Training in the blocking API: ranks as threads, and as processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import aiodist.sync as dist
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.training.sync import Compression, GradientReducer, broadcast_parameters
from tests.torch_backend.programs.ddp import Net
from tests.torch_backend.programs.ddp import batches as whole_batches
from tests.training.replicas import (
    LIMIT,
    by_one_process,
    check,
    fresh,
    loss_of,
    optimizer_of,
    parts,
)
from tests.warm_python import WarmPython

RunThreads = Callable[..., list[Any]]


def always(step: int) -> bool:
    return True


def train(rank: int, size: int, **options: Any) -> Net:
    model = fresh(rank)
    broadcast_parameters(model.state_dict())
    optimizer = optimizer_of(model)
    reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT, **options)
    reducer.attach(optimizer)
    for part in parts(rank, size):
        optimizer.zero_grad()
        loss_of(model, part, extra=True).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_learn_what_one_process_learns_from_the_whole_batch(
    size: int, run_threads: RunThreads
) -> None:
    check(run_threads(size, lambda rank: train(rank, size)), by_one_process(size, always))


def test_compression_learns_about_the_same(run_threads: RunThreads) -> None:
    models = run_threads(2, lambda rank: train(rank, 2, compression=Compression.bf16))

    check(models, by_one_process(2, always), atol=5e-3)


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    """One that calls its closure eight times a step, whatever the loss is."""
    return torch.optim.LBFGS(parameters, 0.1, 8, tolerance_grad=0.0, tolerance_change=0.0)


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.05), lbfgs])
@pytest.mark.parametrize("synchronizes", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_step_synchronizes_the_gradients_of_its_closure(
    make: Callable[[Any], torch.optim.Optimizer],
    synchronizes: bool,
    named: bool,
    run_threads: RunThreads,
) -> None:
    """The closure may do so itself, and then its call counts."""

    def train(
        batches: Any,
        prepare: Callable[[Net, torch.optim.Optimizer], Callable[[], None]] | None = None,
    ) -> Net:
        model = fresh()
        optimizer = make(model.parameters())
        meet = None if prepare is None else prepare(model, optimizer)
        for batch in batches:

            def closure(batch: Any = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch, extra=True)
                loss.backward()
                if meet is not None and synchronizes:
                    meet()
                return loss

            if named:
                optimizer.step(closure=closure)  # type: ignore[arg-type]
            else:
                optimizer.step(closure)  # type: ignore[arg-type]
        return model

    def prepare(model: Net, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        reducer = GradientReducer(model.parameters())
        reducer.attach(optimizer)
        return reducer.synchronize

    alone = train(whole_batches(2)[:2])
    check(run_threads(2, lambda rank: train(parts(rank, 2)[:2], prepare)), alone, atol=1e-4)


def test_changes_between_synchronize_and_step_are_kept(run_threads: RunThreads) -> None:
    """Clipping, and a schedule; the step does not reduce a second time."""

    def learn(
        model: Net, batch: Any, optimizer: torch.optim.Optimizer, meet: Callable[[], None]
    ) -> None:
        optimizer.zero_grad()
        loss_of(model, batch, extra=True).backward()
        meet()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    def one(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        reducer = GradientReducer(model.parameters())
        reducer.attach(optimizer)
        schedule = StepLR(optimizer, 1, 0.5)
        for number, part in enumerate(parts(rank, 2)):
            learn(model, part, optimizer, reducer.synchronize)
            schedule.step()
            reductions = [o for o in dist.recent_operations() if o.operation == "all_reduce"]
            assert len(reductions) == number + 1
        return model

    models = run_threads(2, one)

    alone = fresh()
    optimizer = optimizer_of(alone)
    schedule = StepLR(optimizer, 1, 0.5)
    for mine, theirs in zip(parts(0, 2), parts(1, 2), strict=True):
        both = tuple(torch.cat(pair) for pair in zip(mine, theirs, strict=True))
        learn(alone, both, optimizer, lambda: None)
        schedule.step()
    check(models, alone)


def test_a_rank_without_a_backward_takes_part_in_the_step(run_threads: RunThreads) -> None:
    def one(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        GradientReducer(model.parameters()).attach(optimizer)
        if rank == 0:
            loss_of(model, parts(0, 2)[0], extra=True).backward()
        optimizer.step()
        return model

    alone = fresh()
    optimizer = optimizer_of(alone)
    (loss_of(alone, parts(0, 2)[0], extra=True) / 2).backward()
    optimizer.step()
    check(run_threads(2, one), alone)


def test_a_bucket_has_arrived_before_backward_has_ended(run_threads: RunThreads) -> None:
    def one(rank: int) -> bool:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        arrived = []

        def wait_in_the_middle(_: torch.Tensor) -> None:
            limit = time.monotonic() + 30
            while not any(done.state == "done" for done in dist.recent_operations()):
                assert time.monotonic() < limit, "nothing arrived while backward ran"
                time.sleep(0.001)
            arrived.append(True)

        first = model.first(parts(rank, 2)[0][0])
        first.register_hook(wait_in_the_middle)
        model.last(model.extra(model.second(first))).sum().backward()
        reducer.synchronize()
        return bool(arrived)

    assert run_threads(2, one) == [True, True]


def test_a_step_that_failed_may_be_followed_by_one_that_succeeds(run_threads: RunThreads) -> None:
    def one(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        GradientReducer(model.parameters()).attach(optimizer)
        if rank == 0:
            loss_of(model, parts(0, 2)[0], extra=True).backward()
        odd = optimizer.step if rank == 0 else partial(dist.all_reduce, torch.ones(5))
        with pytest.raises(CollectiveMismatchError, match=r"rank 1 called all_reduce\(5 x"):
            odd()
        optimizer.zero_grad()
        loss_of(model, parts(rank, 2)[0], extra=True).backward()
        optimizer.step()
        return model

    first, second = run_threads(2, one)

    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_sparse_gradient_of_one_rank_is_told_to_all_and_the_next_step_succeeds(
    run_threads: RunThreads,
) -> None:
    def one(rank: int) -> torch.Tensor:
        table = torch.nn.Embedding(4, 2, sparse=rank == 0)
        with torch.no_grad():
            table.weight.fill_(1)
        reducer = GradientReducer(table.parameters())
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(InvalidUsageError, match=r"shape \(4, 2\) is sparse on some rank"):
            reducer.synchronize()
        table.sparse = False
        table.zero_grad()
        table(torch.tensor([rank])).sum().backward()
        reducer.synchronize()
        assert table.weight.grad is not None
        return table.weight.grad

    for grad in run_threads(2, one):
        assert grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]]


# A process that has imported torch, and has no other thread, forks them.
STARTING = """
import sys
import aiodist
from tests.training.test_sync import _process

aiodist.spawn(_process, args=(2, sys.argv[1]), nprocs=2, start_method="fork")
"""


def _process(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)  # the ranks share the cores
    dist.init_process_group()
    model = train(rank, size)
    dist.destroy_process_group()
    torch.save(model.state_dict(), f"{folder}/{rank}")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_processes_learn_the_same_too(tmp_path: Path, warm_python: WarmPython) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    subprocess.run([*warm_python.command, str(script), str(tmp_path)], check=True)

    models = []
    for rank in range(2):
        model = fresh()
        model.load_state_dict(torch.load(tmp_path / str(rank)))
        models.append(model)
    check(models, by_one_process(2, always))


def test_a_step_whose_gradients_were_left_out_does_not_count_for_the_next(
    run_threads: RunThreads,
) -> None:
    def on_rank(rank: int) -> float:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], 1.0)
        reducer = GradientReducer([parameter])
        reducer.attach(optimizer)
        parameter.sum().backward()
        reducer.synchronize()
        optimizer.zero_grad()  # and no step
        with reducer.no_sync():
            (parameter * (rank + 1)).sum().backward()
        optimizer.step()
        return parameter.item()

    assert run_threads(2, on_rank) == [-1.5, -1.5]


def test_a_step_after_one_backward_too_many_may_be_followed_by_a_right_one(
    run_threads: RunThreads,
) -> None:
    def on_rank(rank: int) -> None:
        model = fresh()
        optimizer = optimizer_of(model)
        GradientReducer(model.parameters()).attach(optimizer)
        part = parts(rank, 2)[0]
        for _ in range(2):
            loss_of(model, part, extra=True).backward()
        with pytest.raises(InvalidUsageError, match="under no_sync"):
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model, part, extra=True).backward()
        optimizer.step()

    run_threads(2, on_rank)
