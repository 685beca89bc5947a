"""Training in the async API: ranks of one loop, each with a model of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import aiodist as dist
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.testing import run_ranks
from aiodist.training import (
    Compression,
    GradientReducer,
    async_reducer,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from aiodist.training.buckets import Bucket
from tests.torch_backend.programs.ddp import Net
from tests.training.replicas import (
    LIMIT,
    Used,
    by_one_process,
    check,
    fresh,
    loss_of,
    optimizer_of,
    parts,
)


async def train(rank: int, size: int, used: Used, **options: object) -> Net:
    model = fresh(rank)
    await broadcast_parameters(model)
    optimizer = optimizer_of(model)
    reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT, **options)
    for step, part in enumerate(parts(rank, size)):
        optimizer.zero_grad()
        loss = loss_of(model, part, used(step))
        await asyncio.to_thread(loss.backward)
        await reducer.synchronize()
        optimizer.step()
    reducer.close()
    return model


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_ranks_learn_what_one_process_learns_from_the_whole_batch(size: int) -> None:
    def always(step: int) -> bool:
        return True

    models = await run_ranks(size, lambda rank: train(rank, size, always), "unix")

    check(models, by_one_process(size, always))


async def test_a_layer_that_no_rank_uses_in_a_step_has_no_gradient() -> None:
    """Else its weights would decay, and its momentum go on."""

    def in_the_middle(step: int) -> bool:
        return step in (1, 2)

    models = await run_ranks(2, lambda rank: train(rank, 2, in_the_middle))

    check(models, by_one_process(2, in_the_middle))


async def test_a_layer_that_one_rank_uses_counts_as_zero_on_the_others() -> None:
    async def one(rank: int) -> torch.Tensor:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        loss_of(model, parts(rank, 2)[0], extra=rank == 0).backward()
        mine = model.extra.weight.grad
        assert (mine is None) == (rank == 1)
        expected = None if mine is None else mine.clone() / 2
        await reducer.synchronize()
        if expected is not None:
            assert torch.equal(model.extra.weight.grad, expected)
        return model.extra.weight.grad

    first, second = await run_ranks(2, one)

    assert torch.equal(first, second)


async def test_ranks_may_make_their_gradients_in_different_orders() -> None:
    async def one(rank: int) -> list[torch.Tensor]:
        layers = [torch.nn.Linear(4, 4) for _ in range(6)]
        weights = [parameter for layer in layers for parameter in layer.parameters()]
        await broadcast_parameters(weights)
        reducer = GradientReducer(weights, op=dist.ReduceOp.SUM, bucket_bytes=64)
        order = [1, 4, 0, 5, 2, 3] if rank else range(6)
        for index in order:  # a backward for each: the order is certain
            layers[index](torch.full((1, 4), index + rank + 1.0)).sum().backward()
        await reducer.synchronize()
        return [layer.weight.grad for layer in layers]

    first, second = await run_ranks(2, one)

    for index, (one_grad, other) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(one_grad, torch.full((4, 4), 2 * index + 3.0))
        assert torch.equal(one_grad, other)


async def test_threads_of_one_backward_launch_buckets_in_their_order() -> None:
    """Backward has one for each device; here one fills a bucket while one launches that before."""
    is_launching = threading.Event()
    order: list[Bucket] = []

    class Slow(GradientReducer):
        def _start(self, bucket: Bucket) -> None:
            if bucket is self._buckets[0]:
                is_launching.set()
                time.sleep(0.1)
            order.append(bucket)
            super()._start(bucket)

    async def on_rank(rank: int) -> None:
        second, first = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        reducer = Slow([second, first], bucket_bytes=1)

        def later() -> None:
            assert is_launching.wait(5)
            second.sum().backward()

        await asyncio.gather(asyncio.to_thread(first.sum().backward), asyncio.to_thread(later))
        await reducer.synchronize()
        assert order == reducer._buckets
        reducer.close()

    await run_ranks(1, on_rank)


async def test_a_bucket_follows_the_stream_of_the_thread_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent from the loop's thread, whose own stream knows nothing of the gradients."""
    asked: list[int] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        asked.append(threading.get_ident())
        return function

    async def on_rank(rank: int) -> None:
        parameter = torch.nn.Parameter(torch.ones(2))
        reducer = GradientReducer([parameter])
        threads: list[int] = []

        def backward() -> None:
            threads.append(threading.get_ident())
            (3 * parameter).sum().backward()

        await asyncio.to_thread(backward)
        await reducer.synchronize()
        assert asked == threads
        assert parameter.grad.tolist() == [3, 3]  # type: ignore[union-attr]
        reducer.close()

    monkeypatch.setattr(async_reducer, "on_callers_stream", noting)
    await run_ranks(1, on_rank)


async def test_a_bucket_has_arrived_before_backward_has_ended() -> None:
    """Backward waits in its first layer, which is its last, until a bucket's sum is there."""
    arrived = threading.Event()

    async def one(rank: int) -> None:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)

        def wait_in_the_middle(_: torch.Tensor) -> None:
            limit = time.monotonic() + 30
            while not any(done.state == "done" for done in dist.recent_operations()):
                assert time.monotonic() < limit, "nothing arrived while backward ran"
                time.sleep(0.001)
            arrived.set()

        def step() -> None:
            first = model.first(parts(rank, 2)[0][0])
            first.register_hook(wait_in_the_middle)
            model.last(model.extra(model.second(first))).sum().backward()

        await asyncio.to_thread(step)
        await reducer.synchronize()

    await run_ranks(2, one, "unix")

    assert arrived.is_set()


@pytest.mark.parametrize("compression", [Compression.fp16, Compression.bf16])
async def test_compression_halves_the_bytes_and_learns_about_the_same(
    compression: Compression,
) -> None:
    def always(step: int) -> bool:
        return True

    async def bytes_of(rank: int, used: Compression) -> tuple[int, set[str]]:
        model = fresh()
        reducer = GradientReducer(model.parameters(), compression=used)
        loss_of(model, parts(rank, 2)[0], extra=True).backward()
        await reducer.synchronize()
        sent = [done for done in dist.recent_operations() if done.operation == "all_reduce"]
        assert sum(done.nbytes for done in sent) == reducer.bytes_per_step
        assert all(each.grad.dtype is torch.float32 for each in model.parameters())
        return reducer.bytes_per_step, {done.dtype for done in sent}

    (plain, dtypes), _ = await run_ranks(2, lambda rank: bytes_of(rank, Compression.none))
    assert dtypes == {"float32"}
    (narrow, dtypes), _ = await run_ranks(2, lambda rank: bytes_of(rank, compression))
    assert dtypes == {compression.value}
    assert narrow == plain / 2

    models = await run_ranks(2, lambda rank: train(rank, 2, always, compression=compression))
    check(models, by_one_process(2, always), atol=5e-3)


async def test_several_backwards_add_up_where_all_but_the_last_are_silent() -> None:
    async def one(rank: int) -> list[torch.Tensor]:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        first, second, *_ = parts(rank, 2)
        with reducer.no_sync():
            loss_of(model, first, extra=True).backward()  # the layer is used in this one only
        assert dist.recent_operations() == []
        loss_of(model, second, extra=False).backward()
        await reducer.synchronize()
        return [parameter.grad for parameter in model.parameters()]

    one_rank, other = await run_ranks(2, one)

    model = fresh()
    for step, extra in enumerate((True, False)):
        both = [torch.cat(rows) for rows in zip(parts(0, 2)[step], parts(1, 2)[step], strict=True)]
        loss_of(model, (both[0], both[1]), extra).backward()
    for mine, theirs, alone in zip(one_rank, other, model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, alone.grad)


@pytest.mark.parametrize("backwards", [2, 4])
async def test_further_backwards_before_synchronize_are_refused_and_warned_of_once(
    caplog: pytest.LogCaptureFixture, backwards: int
) -> None:
    """A program that forgets ``synchronize`` hears of it by the warning alone."""

    async def one(rank: int) -> None:
        model = fresh()
        reducer = GradientReducer(model.parameters())
        for _ in range(backwards):
            loss_of(model, parts(rank, 2)[0], extra=True).backward()
        with pytest.raises(InvalidUsageError, match="under no_sync"):
            await reducer.synchronize()
        model.zero_grad()
        loss_of(model, parts(rank, 2)[0], extra=True).backward()
        await reducer.synchronize()

    await run_ranks(2, one)
    said = [each.getMessage() for each in caplog.records if "synchronize()" in each.getMessage()]
    assert len(said) == 2  # one of each rank
    assert all(each.startswith("a gradient was made again before synchronize()") for each in said)


@pytest.mark.parametrize("use_reentrant", [True, False])
async def test_a_block_that_reentrant_checkpoints_run_twice_is_refused_with_the_remedy(
    use_reentrant: bool,
) -> None:
    """Each reentrant checkpoint has a backward of its own, which makes the block's gradients."""

    async def one(rank: int) -> None:
        block = torch.nn.Linear(2, 2)
        reducer = GradientReducer(block.parameters())
        x = torch.ones(1, 2, requires_grad=True)
        for _ in range(2):
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        x.sum().backward()
        if use_reentrant:
            with pytest.raises(InvalidUsageError, match=r"checkpoint needs use_reentrant=False"):
                await reducer.synchronize()
        else:
            await reducer.synchronize()

    await run_ranks(1, one)


async def test_a_second_reducer_of_a_parameter_is_refused_until_the_first_one_is_closed() -> None:
    async def one(rank: int) -> None:
        model = fresh()
        first = GradientReducer(model.parameters())
        with pytest.raises(
            InvalidUsageError, match=r"has a GradientReducer already: call .* close"
        ):
            GradientReducer(list(model.parameters())[-1:])
        first.close()
        GradientReducer(model.parameters())

    await run_ranks(1, one)


async def test_a_step_that_failed_may_be_followed_by_one_that_succeeds() -> None:
    async def one(rank: int) -> list[torch.Tensor]:
        model = fresh()
        reducer = GradientReducer(model.parameters())
        part = parts(rank, 2)[0]
        if rank == 0:
            loss_of(model, part, extra=True).backward()
        odd = reducer.synchronize() if rank == 0 else dist.all_reduce(torch.ones(5))
        with pytest.raises(CollectiveMismatchError, match=r"rank 1 called all_reduce\(5 x"):
            await odd
        model.zero_grad()
        loss_of(model, part, extra=True).backward()
        await reducer.synchronize()
        return [parameter.grad for parameter in model.parameters()]

    for mine, theirs in zip(*await run_ranks(2, one), strict=True):
        assert torch.equal(mine, theirs)


async def test_a_sparse_gradient_is_told_to_all_and_the_next_step_succeeds() -> None:
    async def one(rank: int) -> torch.Tensor:
        table = torch.nn.Embedding(4, 2, sparse=rank == 0)
        with torch.no_grad():
            table.weight.fill_(1)
        reducer = GradientReducer(table.parameters())
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(dist.InvalidUsageError, match=r"shape \(4, 2\) is sparse on some rank"):
            await reducer.synchronize()
        table.sparse = False
        table.zero_grad()
        table(torch.tensor([rank])).sum().backward()
        await reducer.synchronize()
        assert table.weight.grad is not None
        return table.weight.grad

    for grad in await run_ranks(2, one):
        assert grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]]


async def test_a_cancelled_step_fails_on_all_ranks_and_the_next_succeeds() -> None:
    async def one(rank: int) -> None:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        part = parts(rank, 2)[0]
        rows = [bucket.flat for bucket in reducer._buckets]
        if rank == 0:
            loss_of(model, part, extra=True).backward()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await reducer.synchronize()
            await dist.send(torch.ones(1), 1)
        else:
            await dist.recv(torch.ones(1), 0)
            loss_of(model, part, extra=True).backward()
            with pytest.raises(dist.CollectiveCancelledError):
                await reducer.synchronize()
        # Where a device may still write, no gradient is put.
        assert all(new.flat is not old for new, old in zip(reducer._buckets, rows, strict=True))
        model.zero_grad()
        loss_of(model, part, extra=True).backward()
        await reducer.synchronize()

    await run_ranks(2, one)


def given_up_by_close(begun: Any) -> None:
    begun.close()


def given_up_by_a_task(begun: Any) -> None:
    asyncio.ensure_future(begun).cancel()  # before its first step


@pytest.mark.parametrize("give_up", [given_up_by_close, given_up_by_a_task])
async def test_a_task_that_is_cancelled_before_its_first_step_fails_on_all_ranks(
    give_up: Callable[[Any], None],
) -> None:
    async def one(rank: int) -> float:
        model = fresh(rank)
        optimizer = optimizer_of(model)
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        for begin in (
            reducer.synchronize,
            lambda: broadcast_parameters(model),
            lambda: broadcast_optimizer_state(optimizer),
        ):
            if rank == 0:
                give_up(begin())
            else:
                with pytest.raises(dist.CollectiveCancelledError):
                    await begin()
        await broadcast_parameters(model)
        loss_of(model, parts(0, 2)[0], extra=True).backward()
        own = model.extra.weight.grad.clone()
        await reducer.synchronize()
        return float((model.extra.weight.grad - own).abs().max())

    assert max(await run_ranks(2, one)) < 1e-6


async def test_synchronize_takes_part_at_the_call() -> None:
    """A collective that is called before it is awaited comes after it on all ranks."""

    async def one(rank: int) -> float:
        model = fresh()
        reducer = GradientReducer(model.parameters(), bucket_bytes=LIMIT)
        synchronized = reducer.synchronize()
        later = dist.all_reduce(number := torch.ones(1))
        if rank:
            await later
            await synchronized
        else:
            await asyncio.gather(synchronized, later)
        return number.item()

    assert await run_ranks(2, one) == [2.0, 2.0]


async def test_after_close_the_parameters_are_left_alone() -> None:
    async def one(rank: int) -> None:
        model = fresh()
        reducer = GradientReducer(model.parameters())
        reducer.close()
        reducer.close()
        loss_of(model, parts(rank, 1)[0], extra=True).backward()
        assert dist.recent_operations() == []

    await run_ranks(1, one)


async def test_invalid_arguments_are_refused() -> None:
    async def one(rank: int) -> None:
        frozen = fresh().requires_grad_(False)
        with pytest.raises(InvalidUsageError, match="nothing to train"):
            GradientReducer(frozen.parameters())
        with pytest.raises(InvalidUsageError, match="by AVG or SUM"):
            GradientReducer(fresh().parameters(), op=dist.ReduceOp.MAX)
        group = await dist.new_group([0])
        if rank == 1:
            with pytest.raises(InvalidUsageError, match="not in the group"):
                GradientReducer(fresh().parameters(), group=group)

    await run_ranks(2, one)
