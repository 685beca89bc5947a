"""`aiodist.training` on tensors of a GPU that ranks share, on a stream of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.jobs import run_job

pytestmark = pytest.mark.gpu

MODEL = """
import asyncio
import copy
import os
import torch
from torch import nn
from aiodist.training import Compression

COMPRESSION = Compression[os.environ["COMPRESSION"]]
BUCKET_BYTES = 4096
# Buckets go from the last to the first layer: of the bucket of this one the rest waits for synchronize().
unused = nn.Linear(2, 2)
layers = [nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)]
is_first = os.environ["UNUSED"] == "first"
model = nn.Sequential(*([unused, *layers] if is_first else [*layers, unused]))
data = torch.randn(5, 16, 32, generator=torch.Generator().manual_seed(1))


# The stream's next work comes late, so that who does not wait for it is found.
def delay():
    waste = torch.zeros(1 << 16, device="cuda")
    for _ in range(100):
        waste += 1


# Raises where the host waits for the device.
def without_waiting(backward):
    torch.cuda.set_sync_debug_mode("error")
    backward()
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

dist.init_process_group("aiodist")
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
    await dist.init_process_group("aiodist")
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
    ("compression", "unused"), [("none", "first"), ("none", "last"), ("bf16", "first")]
)
@pytest.mark.parametrize("door", ["blocking", "async"])
def test_replicas_learn_what_one_process_learns(
    door: str, compression: str, unused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESSION", compression)
    monkeypatch.setenv("UNUSED", unused)
    script = tmp_path / "training.py"
    script.write_text(MODEL + (BLOCKING if door == "blocking" else ASYNC))
    assert run_job(script, 2).count("equal") == 2
