"""`aiodist.training` on tensors of a GPU that ranks share, on a stream of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aiodist.training.buckets import Bucket
from tests.gpu.delays import delay
from tests.gpu.jobs import run_job

pytestmark = pytest.mark.gpu

MODEL = """
import asyncio
import copy
import os
os.environ["NCCL_HOSTID"] = os.environ["RANK"]  # a host of its own for NCCL, or it refuses to share the GPU
import torch
from torch import nn
from aiodist.training import Compression
from tests.gpu.delays import delay

COMPRESSION = Compression[os.environ["COMPRESSION"]]
BACKEND = os.environ["BACKEND"]
DEVICE = None if BACKEND == "aiodist" else 0
BUCKET_BYTES = 4096
# Buckets go from the last to the first layer: the rest of this layer's bucket waits for synchronize().
unused = nn.Linear(2, 2)
layers = [nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)]
is_first = os.environ["UNUSED"] == "first"
model = nn.Sequential(*([unused, *layers] if is_first else [*layers, unused]))
data = torch.randn(5, 16, 32, generator=torch.Generator().manual_seed(1))


# Raises where the host waits for the device.
def without_waiting(backward):
    torch.cuda.set_sync_debug_mode("error")
    try:
        backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def loss_of(model, batch):
    for layer in model[1:] if is_first else model[:-1]:
        batch = layer(batch)
    return batch.square().mean()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def compare(mine, alone):
    exact = COMPRESSION is Compression.none
    tolerance = dict(rtol=1e-4, atol=1e-5) if exact else dict(rtol=0.05, atol=0.01)
    for found, expected in zip(mine.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), **tolerance)
    assert unused.weight.grad is None
    print("equal", flush=True)
"""

BLOCKING = """
import aiodist.sync as dist
from aiodist.training.sync import GradientReducer, broadcast_parameters

dist.init_process_group(BACKEND, device_id=DEVICE)
rank, size = dist.get_rank(), dist.get_world_size()
with torch.cuda.stream(torch.cuda.Stream()):
    model.cuda()
    broadcast_parameters(model)
    alone = copy.deepcopy(model).cpu()
    reducer = GradientReducer(model.parameters(), compression=COMPRESSION, bucket_bytes=BUCKET_BYTES)
    optimizer, optimizer_alone = optimizer_of(model), optimizer_of(alone)
    reducer.attach(optimizer)
    for batch in data:
        optimizer.zero_grad()
        mine = batch.chunk(size)[rank].cuda()
        delay()
        without_waiting(loss_of(model, mine).backward)
        optimizer.step()
        optimizer_alone.zero_grad()
        loss_of(alone, batch).backward()
        optimizer_alone.step()
    compare(model, alone)
dist.destroy_process_group()
"""

ASYNC = """
import aiodist as dist
from aiodist.training import GradientReducer, broadcast_parameters


async def main():
    await dist.init_process_group(BACKEND, device_id=DEVICE)
    rank, size = dist.get_rank(), dist.get_world_size()
    model.cuda()
    await broadcast_parameters(model)
    alone = copy.deepcopy(model).cpu()
    reducer = GradientReducer(model.parameters(), compression=COMPRESSION, bucket_bytes=BUCKET_BYTES)
    optimizer, optimizer_alone = optimizer_of(model), optimizer_of(alone)
    stream = torch.cuda.Stream()

    def backward(batch):
        with torch.cuda.stream(stream):
            batch = batch.cuda()
            delay()
            without_waiting(loss_of(model, batch).backward)

    for batch in data:
        optimizer.zero_grad()
        stream.wait_stream(torch.cuda.current_stream())
        await asyncio.to_thread(backward, batch.chunk(size)[rank])
        await reducer.synchronize()
        optimizer.step()
        optimizer_alone.zero_grad()
        loss_of(alone, batch).backward()
        optimizer_alone.step()
    compare(model, alone)
    await dist.destroy_process_group()


asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("backend", "compression", "unused"),
    [
        ("aiodist", "none", "first"),
        ("aiodist", "none", "last"),
        ("aiodist", "bf16", "first"),
        ("cpu:aiodist,cuda:nccl", "none", "first"),
    ],
)
@pytest.mark.parametrize("api", ["blocking", "async"])
def test_replicas_learn_what_one_process_learns(
    api: str,
    backend: str,
    compression: str,
    unused: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BACKEND", backend)
    monkeypatch.setenv("COMPRESSION", compression)
    monkeypatch.setenv("UNUSED", unused)
    script = tmp_path / "training.py"
    script.write_text(MODEL + (BLOCKING if api == "blocking" else ASYNC))
    assert run_job(script, 2).count("equal") == 2


def test_a_bucket_follows_every_stream_on_which_it_was_written() -> None:
    parameters = [torch.zeros(1 << 16, device="cuda", requires_grad=True) for _ in range(2)]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1)
    first, second, third = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(3):  # what an operator's first use takes would hide what comes too early
        torch.cuda.synchronize()
        delay()
        bucket = Bucket(parameters, torch.float32, 0.5)  # makes the row zero, when it comes to that
        with torch.cuda.stream(first):
            bucket.put(0)
        with torch.cuda.stream(second):
            delay()
            bucket.put(1)
        with torch.cuda.stream(third):
            bucket.seal()
            values = bucket.flat.tolist()
        assert values == [0.5] * (1 << 16) + [1.0] * (1 << 16) + [1, 1]


BOTH_DEVICES = """
import sys
import torch
import aiodist.sync as dist
from aiodist.training.sync import GradientReducer

dist.init_process_group("aiodist")
sys.setswitchinterval(1e-6)  # the threads of the two devices meet in the middle of all they do
parameters = [
    torch.zeros(10 + number, device=device, requires_grad=True)
    for number in range(30)
    for device in ("cpu", "cuda")
]
reducer = GradientReducer(parameters, bucket_bytes=1)
for turn in range(10):
    for parameter in parameters:
        parameter.grad = None
    factor = turn + dist.get_rank()
    sum((factor * parameter).sum().cpu() for parameter in parameters).backward()
    reducer.synchronize()
    for parameter in parameters:
        assert torch.all(parameter.grad == turn + 0.5).item()
dist.destroy_process_group()
print("good", flush=True)
"""


def test_backward_has_a_thread_for_each_device(tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(BOTH_DEVICES)
    assert run_job(script, 2).count("good") == 2
