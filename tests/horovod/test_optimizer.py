"""DistributedOptimizer learns what one process learns from the whole batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import aiodist.horovod as hvd
import aiodist.sync as dist
from aiodist.errors import InvalidUsageError
from aiodist.training.sync import GradientReducer
from tests.torch_backend.programs.ddp import Net, batches, own
from tests.training.replicas import by_one_process, check, fresh, loss_of, optimizer_of, parts

RunHvd = Callable[..., list[Any]]


def train(rank: int, size: int, **options: Any) -> Net:
    """Train as Horovod's examples do."""
    model = fresh(rank)
    optimizer = optimizer_of(model)
    optimizer.param_groups[0]["lr"] += rank  # rank 0's is the right one
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    options = {"named_parameters": model.named_parameters(), **options}
    distributed = hvd.DistributedOptimizer(optimizer, **options)
    for part in parts(rank, size):
        distributed.zero_grad()
        loss_of(model, part, extra=True).backward()
        distributed.step()
    return model


@pytest.mark.parametrize(
    ("options", "atol"),
    [
        ({}, 1e-6),
        ({"named_parameters": None}, 1e-6),
        ({"gradient_predivide_factor": 3.0}, 1e-6),
        ({"compression": hvd.Compression.fp16}, 5e-3),
        ({"compression": hvd.Compression.bf16}, 5e-3),
        ({"num_groups": 2, "sparse_as_dense": True}, 1e-6),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_ranks_learn_what_one_process_learns(
    size: int, options: dict[str, Any], atol: float, run_hvd: RunHvd
) -> None:
    models = run_hvd(size, lambda rank: train(rank, size, **options))
    check(models, by_one_process(size, lambda _: True), atol)


def test_a_distributed_optimizer_is_the_given_object_with_more_methods(run_hvd: RunHvd) -> None:
    """A schedule that was made before sees its steps, and its class is the optimizer's."""

    def on_rank(rank: int) -> Net:
        model = fresh()
        plain = optimizer_of(model)
        schedule = StepLR(plain, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        assert isinstance(optimizer, torch.optim.SGD)
        assert type(optimizer).__name__ == "SGD"
        for part in parts(rank, 2):
            optimizer.zero_grad()
            loss_of(model, part, extra=True).backward()
            optimizer.step()
            schedule.step()
        return model

    alone = fresh()
    optimizer = optimizer_of(alone)
    schedule = StepLR(optimizer, 1, 0.5)
    for x, y in batches(2):
        optimizer.zero_grad()
        loss_of(alone, (x, y), extra=True).backward()
        optimizer.step()
        schedule.step()
    with warnings.catch_warnings(action="error"):
        check(run_hvd(2, on_rank), alone)


def test_clipping_comes_between_synchronize_and_the_step(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters())
        for part in parts(rank, 2):
            optimizer.zero_grad()
            loss_of(model, part, extra=True).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        loss_of(model, parts(rank, 2)[0], extra=True).backward()
        optimizer.zero_grad()
        with pytest.raises(InvalidUsageError, match="has changed"):
            optimizer.step()
        return model

    alone = fresh()
    optimizer = optimizer_of(alone)
    for batch in batches(2):
        optimizer.zero_grad()
        loss_of(alone, batch, extra=True).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        optimizer.step()
    check(run_hvd(2, on_rank), alone)


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler_steps_after_synchronize(fused: bool, run_hvd: RunHvd) -> None:
    """As in Horovod's own example. The second batch overflows on rank 1: all ranks leave its step out."""

    def on_rank(rank: int) -> Net:
        model = fresh()
        adam = torch.optim.Adam(model.parameters(), fused=fused)
        optimizer = hvd.DistributedOptimizer(adam, model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step, part in enumerate(parts(rank, 2)):
            optimizer.zero_grad()
            loss = loss_of(model, part, extra=True)
            scaler.scale(loss * float("inf") if (step, rank) == (1, 1) else loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512
        return model

    alone = fresh()
    adam = torch.optim.Adam(alone.parameters(), fused=fused)
    for step, batch in enumerate(batches(2)):
        if step != 1:
            adam.zero_grad()
            loss_of(alone, batch, extra=True).backward()
            adam.step()
    check(run_hvd(2, on_rank), alone)


def test_gradients_of_several_backwards_add_up(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = hvd.DistributedOptimizer(
            optimizer_of(model), model.named_parameters(), backward_passes_per_step=2
        )
        mine = parts(rank, 2)
        for several in (mine[:2], mine[2:], mine[:3]):
            if len(several) == 3:
                optimizer.set_backward_passes_per_step(3)
            optimizer.zero_grad()
            for part in several:
                loss_of(model, part, extra=True).backward()
            optimizer.step()
        return model

    alone = fresh()
    optimizer = optimizer_of(alone)
    whole = batches(2)
    for several in (whole[:2], whole[2:], whole[:3]):
        optimizer.zero_grad()
        for batch in several:
            loss_of(alone, batch, extra=True).backward()
        optimizer.step()
    check(run_hvd(2, on_rank), alone)


def test_parameters_are_matched_by_their_names(run_hvd: RunHvd) -> None:
    """Two layers of one shape, which ranks list in different orders."""

    def on_rank(rank: int) -> list[list[float]]:
        layers = {name: nn.Linear(2, 2, bias=False) for name in ("one", "two")}
        model = nn.ModuleDict(dict(sorted(layers.items(), reverse=rank == 1)))
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
        )
        (layers["one"](torch.ones(2)) + 5 * layers["two"](torch.ones(2))).sum().backward()
        optimizer.synchronize()
        return [layers[name].weight.grad.flatten().tolist() for name in ("one", "two")]

    assert run_hvd(2, on_rank) == [[[1.0] * 4, [5.0] * 4]] * 2


def test_names_that_are_wrong_are_refused(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        model = fresh()
        named = list(model.named_parameters())
        for wrong, said in (
            ([*named, named[0]], "occur twice"),
            (named[1:], "leave out 1 of"),
            ([parameter for _, parameter in named], "pairs of name and parameter"),
            ([(f"{name}.{rank}", each) for name, each in named], "trained on one of ranks 0 and 1"),
        ):
            with pytest.raises(InvalidUsageError, match=said):
                hvd.DistributedOptimizer(optimizer_of(model), wrong)
        for options, said in (
            ({"op": hvd.Adasum}, "Adasum is not there"),
            ({"op": hvd.Max}, "by AVG or SUM"),
            ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "op=hvd.Average"),
            ({"num_groups": -1}, "not negative"),
            ({"backward_passes_per_step": 0}, "1 or more"),
        ):
            with pytest.raises(InvalidUsageError, match=said):
                hvd.DistributedOptimizer(optimizer_of(model), named, **options)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"compression must be Compression.none, .* not 'fp16'"):
            hvd.DistributedOptimizer(optimizer_of(model), named, "fp16")  # type: ignore[arg-type]

    run_hvd(2, on_rank)


def test_names_that_differ_in_a_process_set_are_told_with_the_ranks_of_the_job(
    run_hvd: RunHvd,
) -> None:
    def on_rank(rank: int) -> None:
        some = hvd.add_process_set([1, 2])
        if rank:
            model = fresh()
            named = [(f"{name}.{rank}", each) for name, each in model.named_parameters()]
            with pytest.raises(InvalidUsageError, match="trained on one of ranks 1 and 2"):
                hvd.DistributedOptimizer(optimizer_of(model), named, process_set=some)

    run_hvd(3, on_rank)


@pytest.mark.parametrize("size", [1, 2])
def test_an_optimizer_is_distributed_once(size: int, run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        optimizer = optimizer_of(fresh())
        with pytest.raises(InvalidUsageError, match=r"op=hvd\.Average"):
            hvd.DistributedOptimizer(optimizer, op=hvd.Sum, gradient_predivide_factor=2.0)
        hvd.DistributedOptimizer(optimizer)
        with pytest.raises(InvalidUsageError, match="distributed already"):
            hvd.DistributedOptimizer(optimizer)

    run_hvd(size, on_rank)


@pytest.mark.parametrize("size", [1, 2])
def test_parameters_are_not_added_to_an_optimizer_of_several_ranks(
    size: int, run_hvd: RunHvd
) -> None:
    def on_rank(rank: int) -> None:
        optimizer = hvd.DistributedOptimizer(optimizer_of(fresh()))
        added = {"params": [nn.Parameter(torch.zeros(1))]}
        if size == 1:
            optimizer.add_param_group(added)
            assert len(optimizer.param_groups) == 2
            return
        with pytest.raises(InvalidUsageError, match="added after DistributedOptimizer"):
            optimizer.add_param_group(added)
        assert len(optimizer.param_groups) == 1

    run_hvd(size, on_rank)


def test_a_parameter_that_is_frozen_later_trains_again_when_it_is_thawed(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> tuple[float, float]:
        late, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([late, other], lr=1.0))
        late.requires_grad_(False)
        (late + other * rank).backward()
        optimizer.step()
        still = float(late.detach())
        optimizer.zero_grad()
        late.requires_grad_(True)
        (late * rank + other).backward()
        optimizer.step()
        return still, float(late.detach())

    assert run_hvd(2, on_rank) == [(1.0, 0.5)] * 2


@pytest.mark.parametrize("sparse_as_dense", [True, False])
def test_sparse_gradients_come_back_sparse(sparse_as_dense: bool, run_hvd: RunHvd) -> None:
    def table() -> nn.Embedding:
        made = nn.Embedding(4, 2, sparse=True)
        nn.init.ones_(made.weight)
        return made

    def on_rank(rank: int) -> nn.Embedding:
        model = table()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(model.parameters()),
            model.named_parameters(),
            sparse_as_dense=sparse_as_dense,
        )
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([rank, step])).square().sum().backward()
            optimizer.step()
        return model

    alone = table()
    optimizer = torch.optim.SparseAdam(alone.parameters())
    for step in range(3):
        optimizer.zero_grad()
        (alone(torch.tensor([0, step, 1, step])).square().sum() / 2).backward()
        optimizer.step()
    check(run_hvd(2, on_rank), alone)


def test_join_waits_for_ranks_with_more_batches(run_hvd: RunHvd) -> None:
    """Two optimizers, each of which makes a step with each batch; twice."""

    def steps(rank: int, size: int) -> list[Any]:
        return [(own(x, rank), own(y, rank)) for x, y in batches(size)[: rank + 1]]

    def on_rank(rank: int) -> nn.ModuleList:
        models = nn.ModuleList([fresh(0), fresh(1)])
        optimizers = [
            hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters())
            for model in models
        ]
        for _ in range(2):
            for part in steps(rank, 3):
                for model, optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    loss_of(model, part, extra=True).backward()
                    optimizer.step()
            assert hvd.join() == 2
        return models

    alone = nn.ModuleList([fresh(0), fresh(1)])
    everything = [steps(rank, 3) for rank in range(3)]
    for model in alone:
        optimizer = optimizer_of(model)
        for step in [0, 1, 2] * 2:
            optimizer.zero_grad()
            several = [each[step] for each in everything if step < len(each)]
            (sum(loss_of(model, part, extra=True) for part in several) / 3).backward()
            optimizer.step()
    check(run_hvd(3, on_rank), alone)


def test_a_collective_that_ranks_in_join_do_not_know_is_an_error(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        model = fresh()
        hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters())
        call = partial(hvd.allreduce, torch.ones(5)) if rank else hvd.join
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 called all_reduce\(5 x"):
            call()

    run_hvd(2, on_rank)


def test_ranks_outside_the_process_set_train_alone(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> Net:
        some = hvd.add_process_set([0, 1])
        model = fresh()
        optimizer = hvd.DistributedOptimizer(
            optimizer_of(model), model.named_parameters(), process_set=some
        )
        data = parts(rank, 2) if rank < 2 else batches(2)
        for part in data:
            optimizer.zero_grad()
            loss_of(model, part, extra=True).backward()
            optimizer.step()
        return model

    models = run_hvd(3, on_rank)

    check(models[:2], models[2])


def test_batch_norm_over_all_ranks_is_that_of_the_whole_batch(run_hvd: RunHvd) -> None:
    """Ranks have batches of different sizes."""
    whole = torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1

    def learn(norm: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = rows.clone().requires_grad_()
        output = norm(x)
        output.square().mul(torch.arange(3.0)).sum().backward()
        assert x.grad is not None
        return output.detach(), x.grad

    def on_rank(rank: int) -> tuple[Any, ...]:
        norm = hvd.SyncBatchNorm(4)
        rows = whole[:3] if rank == 0 else whole[3:]
        results = learn(norm, rows)
        weight = hvd.allreduce(norm.weight.grad, op=hvd.Sum)
        norm.eval()
        return (*results, weight, norm(whole).detach(), norm.running_mean, norm.running_var)

    expected_norm = nn.BatchNorm1d(4)
    output, grad = learn(expected_norm, whole)
    expected_norm.eval()
    evaluated = expected_norm(whole).detach()
    for rank, results in enumerate(run_hvd(2, on_rank)):
        rows = slice(0, 3) if rank == 0 else slice(3, None)
        expected = (
            output[rows],
            grad[rows],
            expected_norm.weight.grad,
            evaluated,
            expected_norm.running_mean,
            expected_norm.running_var,
        )
        for mine, other in zip(results, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "scale", "mean", "shape", "tolerance"),
    [
        (torch.float32, 0.1, 1000.0, (8, 2, 16, 16), 5e-3),
        (torch.float16, 1.0, 0.0, (32, 2, 56, 56), 5e-3),
        (torch.bfloat16, 1.0, 3.0, (8, 2, 16, 16), 5e-2),
    ],
)
def test_batch_norm_of_large_means_and_of_half_precision(
    run_hvd: RunHvd,
    dtype: torch.dtype,
    scale: float,
    mean: float,
    shape: tuple[int, ...],
    tolerance: float,
) -> None:
    """The square of a mean leaves no digit for a small variance; float16 ends at 65504."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    whole = (noise * scale + mean).to(dtype)

    def on_rank(rank: int) -> torch.Tensor:
        output: torch.Tensor = hvd.SyncBatchNorm(2)(whole.chunk(2)[rank])
        assert output.dtype is dtype
        return output.detach()

    expected = nn.BatchNorm2d(2).double()(whole.double()).detach()
    for result, part in zip(run_hvd(2, on_rank), expected.chunk(2), strict=True):
        torch.testing.assert_close(result.double(), part, rtol=0, atol=tolerance)


def test_parameters_are_free_for_another_reducer_after_shutdown(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        model, other = fresh(), fresh()
        hvd.DistributedOptimizer(optimizer_of(model))
        some = hvd.add_process_set([0, 1])
        hvd.DistributedOptimizer(optimizer_of(other), process_set=some)
        hvd.shutdown()
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        GradientReducer([*model.parameters(), *other.parameters()])

    run_hvd(2, on_rank)
