"""DistributedDataParallel over three ranks, against one process that has the whole batch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

default_store = dist.distributed_c10d._get_default_store  # torch has no public name for it

ROWS = 4
STEPS = 4


class Net(nn.Module):
    """Several layers, so that there are several buckets; one of them is used where asked for."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.second = nn.Linear(32, 32)
        self.extra = nn.Linear(32, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = self.second(x).relu()
        if extra:
            x = self.extra(x).relu()
        return self.last(x)


def batches(size: int, steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator(torch.get_default_device()).manual_seed(1)
    return [
        (
            torch.randn(ROWS * size, 8, generator=made),
            torch.randn(ROWS * size, 3, generator=made),
        )
        for _ in range(steps)
    ]


def own(whole: torch.Tensor, rank: int) -> torch.Tensor:
    return whole[rank * ROWS : (rank + 1) * ROWS]


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: nn.Module, data: Any, extra: Callable[[int], bool]) -> None:
    steps = optimizer(model)
    for number, (x, y) in enumerate(data):
        steps.zero_grad()
        nn.functional.mse_loss(model(x, extra(number)), y).backward()
        steps.step()


def check_equal_replicas(model: nn.Module, size: int) -> None:
    """Bit for bit."""
    for name, value in model.state_dict().items():
        everybody = [torch.empty_like(value) for _ in range(size)]
        dist.all_gather(everybody, value)
        for other in everybody:
            assert torch.equal(other, value), name


def check_close(model: nn.Module, reference: nn.Module, atol: float = 1e-6) -> None:
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=atol, rtol=1e-4, msg=name)


def against_whole_batch(rank: int, size: int, extra: Callable[[int], bool], **options: Any) -> None:
    reference = Net()
    wrapped = DistributedDataParallel(copy.deepcopy(reference), bucket_cap_mb=0.002, **options)
    train(reference, batches(size), extra)
    train(wrapped, [(own(x, rank), own(y, rank)) for x, y in batches(size)], extra)
    check_close(wrapped.module, reference)
    check_equal_replicas(wrapped.module, size)


def equals_whole_batch(rank: int, size: int) -> None:
    against_whole_batch(rank, size, lambda _: True)
    against_whole_batch(rank, size, lambda _: True, gradient_as_bucket_view=True)


def unused_parameters(rank: int, size: int) -> None:
    against_whole_batch(rank, size, lambda step: step % 2 == 0, find_unused_parameters=True)


def static_graph(rank: int, size: int) -> None:
    against_whole_batch(rank, size, lambda _: False, static_graph=True)


def buffers(rank: int, size: int) -> None:
    """Rank 0's statistics go to all before each forward, so the last forward's stay its own."""
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(Net(norm=True))
    data = [(own(x, rank), own(y, rank)) for x, y in batches(size)]
    train(wrapped, data, lambda _: True)
    wrapped.eval()
    alone = [torch.zeros_like(wrapped.module.norm.running_mean) for _ in range(size)]
    dist.all_gather(alone, wrapped.module.norm.running_mean)
    assert not torch.equal(alone[0], alone[1])
    wrapped.train()
    before = alone[0].clone()
    x = own(batches(size)[0][0], rank)
    wrapped(x, True)
    seen = wrapped.module.first(x).detach().mean(0)
    torch.testing.assert_close(wrapped.module.norm.running_mean, 0.9 * before + 0.1 * seen)


def gradient_accumulation(rank: int, size: int) -> None:
    reference = Net()
    wrapped = DistributedDataParallel(copy.deepcopy(reference), bucket_cap_mb=0.002)
    (x1, y1), (x2, y2) = batches(size, 2)
    for x, y in ((x1, y1), (x2, y2)):
        nn.functional.mse_loss(reference(x, True), y).backward()
    with wrapped.no_sync():
        loss = nn.functional.mse_loss(wrapped(own(x1, rank), True), own(y1, rank))
        loss.backward()
    mine = wrapped.module.first.weight.grad.clone()
    everybody = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everybody, mine)
    assert not torch.equal(everybody[0], everybody[1])  # nothing was exchanged
    nn.functional.mse_loss(wrapped(own(x2, rank), True), own(y2, rank)).backward()
    for mine, theirs in zip(wrapped.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def uneven_inputs(rank: int, size: int) -> None:
    """Rank r has r + 2 batches; a rank that is done shadows the others' collectives."""
    wrapped = DistributedDataParallel(Net(), bucket_cap_mb=0.002)
    steps = optimizer(wrapped)
    with Join([wrapped]):
        for x, y in batches(size, rank + 2):
            steps.zero_grad()
            nn.functional.mse_loss(wrapped(own(x, rank), True), own(y, rank)).backward()
            steps.step()
    check_equal_replicas(wrapped.module, size)


def uneven_inputs_with_unused_parameters(rank: int, size: int) -> None:
    """As `uneven_inputs`; the ranks also add up which parameters each of them has used."""
    reference = Net()
    data = batches(size, size + 1)
    has_data = [
        (x[ROWS * max(0, i - 1) :], y[ROWS * max(0, i - 1) :]) for i, (x, y) in enumerate(data)
    ]
    wrapped = DistributedDataParallel(copy.deepcopy(reference), find_unused_parameters=True)
    train(reference, has_data, lambda _: False)
    with Join([wrapped], divide_by_initial_world_size=False):
        train(wrapped, [(own(x, rank), own(y, rank)) for x, y in data[: rank + 2]], lambda _: False)
    check_close(wrapped.module, reference)
    check_equal_replicas(wrapped.module, size)


def uneven_inputs_divided_by_the_ranks_with_data(rank: int, size: int) -> None:
    """As `uneven_inputs`, but gradients are means over the ranks that still have batches."""
    reference = Net()
    data = batches(size, size + 1)
    has_data = [
        (x[ROWS * max(0, i - 1) :], y[ROWS * max(0, i - 1) :]) for i, (x, y) in enumerate(data)
    ]
    wrapped = DistributedDataParallel(copy.deepcopy(reference), bucket_cap_mb=0.002)
    train(reference, has_data, lambda _: True)
    with Join([wrapped], divide_by_initial_world_size=False):
        train(wrapped, [(own(x, rank), own(y, rank)) for x, y in data[: rank + 2]], lambda _: True)
    check_close(wrapped.module, reference)
    check_equal_replicas(wrapped.module, size)


def bfloat16(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
    # By its own name, torch takes this hook only where it finds CUDA.
    return default_hooks.bf16_compress_hook(state, bucket)


def half_precision_hooks(rank: int, size: int) -> None:
    for hook in (default_hooks.fp16_compress_hook, bfloat16):
        torch.manual_seed(0)
        reference = Net()
        wrapped = DistributedDataParallel(copy.deepcopy(reference), bucket_cap_mb=0.002)
        wrapped.register_comm_hook(None, hook)
        train(reference, batches(size), lambda _: True)
        train(wrapped, [(own(x, rank), own(y, rank)) for x, y in batches(size)], lambda _: True)
        check_close(wrapped.module, reference, atol=5e-3)
        check_equal_replicas(wrapped.module, size)


def power_sgd(rank: int, size: int) -> None:
    """Its callbacks start collectives and wait for them, several buckets at a time."""
    wrapped = DistributedDataParallel(Net(), bucket_cap_mb=0.002)
    state = PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    wrapped.register_comm_hook(state, powerSGD_hook)
    (x, y), *_ = batches(size)
    data = [(own(x, rank), own(y, rank))] * 20
    before = nn.functional.mse_loss(wrapped.module(x, True), y).item()
    train(wrapped, data, lambda _: True)
    after = nn.functional.mse_loss(wrapped.module(x, True), y).item()
    assert after < 0.75 * before, (before, after)
    check_equal_replicas(wrapped.module, size)


def overlap(rank: int, size: int) -> None:
    """In a trace, communication of the first bucket runs while backward goes on.

    The other ranks begin their backward when rank 0 is almost through its own: its first bucket
    is on its way until then.
    """
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    wrapped = DistributedDataParallel(layers, bucket_cap_mb=0.02)
    x = torch.randn(16, 64)
    for _ in range(2):  # buckets are laid out anew after the first step
        wrapped(x).sum().backward()
    store = default_store()
    seen: list[torch.Tensor] = []
    layers[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    loss = wrapped(x).sum()
    if rank:
        store.wait(["almost through"])
    else:
        seen[0].register_hook(lambda grad: store.set("almost through", ""))
    with torch.profiler.profile() as profiler:
        loss.backward()
    if rank:
        return
    events = profiler.events()
    reduces = [e for e in events if e.name == "aiodist:all_reduce"]
    compute = [e.time_range for e in events if e.name == "AddmmBackward0"]
    assert len(reduces) >= 4, len(reduces)
    assert all(e.is_async for e in reduces)
    first = min((e.time_range for e in reduces), key=lambda each: each.start)
    during = [work for work in compute if first.start < work.start and work.end < first.end]
    assert len(during) >= 4, f"{len(during)} layers' backward ran while the first bucket was out"


def error_in_a_step(rank: int, size: int) -> None:
    """Rank 2 reduces something else than the others' bucket; the step says so, and so the next."""
    wrapped = DistributedDataParallel(Net())
    x, y = batches(size)[0]

    def step() -> None:
        nn.functional.mse_loss(wrapped(own(x, rank), True), own(y, rank)).backward()

    for _ in range(2):  # buckets are laid out anew after the first step
        step()
    for _ in range(2):
        said = error_of(step if rank != 2 else lambda: dist.all_reduce(torch.ones(5)))
        assert "ranks disagree" in said, said
        assert "rank 2 called all_reduce(5 x float32, SUM)" in said, said
    wrapped.zero_grad()
    step()  # all are through the same number of collectives
    for parameter in wrapped.parameters():
        everybody = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(everybody, parameter.grad)
        assert torch.equal(everybody[0], everybody[1])
        assert torch.equal(everybody[0], everybody[2])


def lost_rank(rank: int, size: int) -> None:
    """The last rank dies in a step; the others' step names it, and so does every later one."""
    wrapped = DistributedDataParallel(Net())
    x, y = batches(size)[0]

    def step() -> None:
        nn.functional.mse_loss(wrapped(own(x, rank), True), own(y, rank)).backward()

    step()
    if rank == size - 1:
        os._exit(7)
    for _ in range(3):
        said = error_of(step)
        assert f"rank {size - 1}" in said, said


def error_of(step: Callable[[], Any]) -> str:
    try:
        step()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("a collective that had to fail raised nothing")
