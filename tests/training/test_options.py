"""What a reducer may be told about its gradients, against one process with the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aiodist
from aiodist.errors import InvalidUsageError
from aiodist.testing import run_ranks
from aiodist.training import GradientReducer as AsyncReducer
from aiodist.training.rows import Row
from aiodist.training.sync import Compression, GradientReducer
from aiodist.types import ReduceOp
from tests.torch_backend.programs.ddp import Net
from tests.training.replicas import (
    LIMIT,
    by_one_process,
    check,
    fresh,
    loss_of,
    optimizer_of,
    parts,
)

RunThreads = Callable[..., list[Any]]


@pytest.mark.parametrize("factor", [2.0, 5.0])
@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16])
def test_a_division_in_two_parts_gives_the_average(
    factor: float, compression: Compression, run_threads: RunThreads
) -> None:
    def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        reducer = GradientReducer(
            model.parameters(),
            bucket_bytes=LIMIT,
            compression=compression,
            gradient_predivide_factor=factor,
        )
        reducer.attach(optimizer)
        for part in parts(rank, 3):
            optimizer.zero_grad()
            loss_of(model, part, extra=True).backward()
            optimizer.step()
        return model

    atol = 1e-6 if compression is Compression.none else 5e-3
    check(run_threads(3, on_rank), by_one_process(3, lambda _: True), atol)


def test_gradients_of_several_backwards_are_sent_once(run_threads: RunThreads) -> None:
    """All batches of a rank make one step. The last step has one backward less than announced."""

    def on_rank(rank: int) -> Net:
        model = fresh()
        optimizer = optimizer_of(model)
        mine = parts(rank, 2)
        reducer = GradientReducer(model.parameters(), backward_passes_per_step=len(mine))
        reducer.attach(optimizer)
        for several in (mine, mine[:-1]):
            optimizer.zero_grad()
            for part in several:
                loss_of(model, part, extra=True).backward()
            optimizer.step()
        return model

    alone = fresh()
    optimizer = optimizer_of(alone)
    both = [parts(rank, 2) for rank in range(2)]
    for several in (both, [each[:-1] for each in both]):
        optimizer.zero_grad()
        for part in [part for each in several for part in each]:
            (loss_of(alone, part, extra=True) / 2).backward()
        optimizer.step()
    check(run_threads(2, on_rank), alone)


async def test_a_reducer_does_not_go_on_over_the_group_that_follows_its_own() -> None:
    """It would divide by the number of ranks before the loss."""

    async def on_rank(rank: int) -> None:
        reducer = AsyncReducer([weight := nn.Parameter(torch.ones(1))])
        if rank == 1:
            await aiodist.abort_process_group()
            return
        with pytest.raises(aiodist.DistError):
            await aiodist.barrier()
        await aiodist.shrink()
        weight.sum().backward()
        with pytest.raises(aiodist.GroupRevokedError):
            await reducer.synchronize()

    await run_ranks(2, on_rank)


async def test_an_interrupted_backward_gives_no_gradients_of_this_rank_alone() -> None:
    class Interrupted(AsyncReducer):
        def _start(self, row: Row) -> None:
            raise KeyboardInterrupt

    async def on_rank(rank: int) -> None:
        weight = nn.Parameter(torch.ones(1))
        reducer = AsyncReducer([weight]) if rank else Interrupted([weight])
        if rank:
            weight.sum().backward()
            with pytest.raises(aiodist.GroupRevokedError):
                await reducer.synchronize()
        else:
            with pytest.raises(KeyboardInterrupt):
                weight.sum().backward()
            with pytest.raises(InvalidUsageError, match="was interrupted as it sent gradients"):
                await reducer.synchronize()
        await aiodist.shrink()  # the ranks go on as the error says
        reducer.close()
        weight.grad = None
        reducer = AsyncReducer([weight])
        (weight * rank).sum().backward()
        await reducer.synchronize()
        assert weight.grad is not None
        assert weight.grad.item() == 0.5

    await run_ranks(2, on_rank)


async def test_one_backward_too_many_is_refused() -> None:
    async def on_rank(rank: int) -> None:
        model = fresh()
        reducer = AsyncReducer(model.parameters(), backward_passes_per_step=2)
        part = parts(rank, 1)[0]
        for _ in range(3):
            loss_of(model, part, extra=True).backward()
        with pytest.raises(InvalidUsageError, match="backward_passes_per_step"):
            await reducer.synchronize()

    await run_ranks(1, on_rank)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_travel_as_dense_ones_and_come_back_sparse(
    make: Callable[..., torch.optim.Optimizer], run_threads: RunThreads
) -> None:
    """Rank 1 does not use the table in the second step, and no rank in the third."""
    words = [[[1, 2], [3]], [[1], []], [[], []]]

    def table() -> nn.Embedding:
        made = nn.Embedding(5, 3, sparse=True)
        with torch.no_grad():
            made.weight.copy_(torch.arange(15.0).view(5, 3))
        return made

    def on_rank(rank: int) -> nn.Module:
        model = table()
        optimizer = make(model.parameters(), lr=0.1)
        GradientReducer(model.parameters(), sparse_as_dense=True).attach(optimizer)
        for step in words:
            optimizer.zero_grad()
            if step[rank]:
                model(torch.tensor(step[rank])).square().sum().backward()
            optimizer.step()
            assert (model.weight.grad is not None) == any(step)
            assert model.weight.grad is None or model.weight.grad.is_sparse
        return model

    alone = table()
    optimizer = make(alone.parameters(), lr=0.1)
    for step in words:
        optimizer.zero_grad()
        if any(step):
            (alone(torch.tensor([*step[0], *step[1]])).square().sum() / 2).backward()
        optimizer.step()
    check(run_threads(2, on_rank), alone)


async def test_a_sparse_gradient_is_not_reduced_once_more() -> None:
    async def on_rank(rank: int) -> list[list[float]]:
        model = nn.Embedding(2, 2, sparse=True)
        reducer = AsyncReducer(model.parameters(), op=ReduceOp.SUM, sparse_as_dense=True)
        model(torch.tensor([1])).sum().backward()
        for _ in range(3):
            await reducer.synchronize()
        assert model.weight.grad is not None
        return model.weight.grad.to_dense().tolist()

    assert await run_ranks(2, on_rank) == [[[0, 0], [2, 2]]] * 2


async def test_options_without_a_meaning_are_refused() -> None:
    async def on_rank(rank: int) -> None:
        for options, said in (
            ({"backward_passes_per_step": 0}, "1 or more"),
            ({"bucket_bytes": 0}, "bucket_bytes is 0, and has to be 1 or more"),
            ({"bucket_bytes": -1}, "bucket_bytes is -1, and has to be 1 or more"),
            ({"gradient_predivide_factor": 0.0}, "more than 0"),
            ({"gradient_predivide_factor": math.nan}, "more than 0 and finite, not nan"),
            ({"gradient_predivide_factor": math.inf}, "more than 0 and finite, not inf"),
            ({"gradient_predivide_factor": 2.0, "op": ReduceOp.SUM}, "is for AVG"),
        ):
            with pytest.raises(InvalidUsageError, match=said):
                AsyncReducer(fresh().parameters(), **options)  # type: ignore[arg-type]

    await run_ranks(1, on_rank)


async def test_arguments_of_a_wrong_type_are_refused() -> None:
    async def on_rank(rank: int) -> None:
        model = fresh()
        weights = next(model.parameters())
        right = list(model.parameters())
        for parameters, options, said in (
            (model, {}, r"several tensors, such as model\.parameters\(\), not Net"),
            (nn.Sequential(nn.Linear(1, 1)), {}, r"must be a tensor, as in .* not Linear"),
            (weights, {}, r"several tensors, such as model\.parameters\(\), not Parameter"),
            (
                model.named_parameters(),
                {},
                r"must be a tensor, as in model\.parameters\(\), not tuple",
            ),
            (right, {"buffers": model.named_buffers}, r"such as model\.buffers\(\), not method"),
            (right, {"compression": "fp16"}, "must be Compression.none, .* not 'fp16'"),
            (right, {"bucket_bytes": "1M"}, "bucket_bytes must be an int, not str"),
            (right, {"gradient_predivide_factor": "2"}, "factor must be a number, not str"),
        ):
            with pytest.raises(TypeError, match=said):
                AsyncReducer(parameters, **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidUsageError, match="stands twice in parameters"):
            AsyncReducer([*right, weights])
        with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, not int"):
            GradientReducer(right).attach(5)  # type: ignore[arg-type]

    await run_ranks(1, on_rank)


async def test_a_computed_tensor_is_refused_and_leaves_no_hook_behind() -> None:
    async def on_rank(rank: int) -> None:
        weight = nn.Parameter(torch.ones(2))
        with pytest.raises(InvalidUsageError, match=r"of shape \(2,\) is computed from others"):
            AsyncReducer([weight * 2, weight])
        AsyncReducer([weight])

    await run_ranks(1, on_rank)


async def test_parameters_without_elements_take_part() -> None:
    async def on_rank(rank: int) -> list[list[float]]:
        gradients = []
        for shapes in ([0], [0, 2], [2, 0], [0, 0]):
            several = [nn.Parameter(torch.ones(shape)) for shape in shapes]
            reducer = AsyncReducer(several)
            for _ in range(2):
                torch.cat([(rank + 1) * each for each in several]).sum().backward()
                await reducer.synchronize()
                gradients.append(torch.cat([each.grad for each in several]).tolist())  # type: ignore[misc]
                for each in several:
                    each.grad = None
        return gradients

    expected = [[], [], *[[1.5, 1.5]] * 4, [], []]
    assert await run_ranks(2, on_rank) == [expected] * 2
