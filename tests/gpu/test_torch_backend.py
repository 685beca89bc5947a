"""the torch backend with CUDA tensors: ranks that share one GPU, each a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.jobs import run_job

PROGRAM = Path(__file__).with_name("torch_program.py")

pytestmark = pytest.mark.gpu

TRAIN = """
import copy
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import aiodist.torch_backend

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(0)
torch.manual_seed(0)
alone = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = DistributedDataParallel(copy.deepcopy(alone).cuda(), device_ids=[0], bucket_cap_mb=0.005)
steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, model)]
for number in range(3):
    data = torch.randn(size * 4, 64, generator=torch.Generator().manual_seed(number))
    alone(data).square().mean().backward()
    model(data[rank * 4 : rank * 4 + 4].cuda()).square().mean().backward()
    for step in steps:
        step.step()
        step.zero_grad()
for mine, theirs in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-5)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine.detach())
    assert all(torch.equal(mine, other) for other in gathered)
dist.destroy_process_group()
print("equal", flush=True)
"""

STREAMS = """
import torch
import torch.distributed as dist

import aiodist.torch_backend

dist.init_process_group("aiodist")
size = dist.get_world_size()
with torch.cuda.stream(torch.cuda.Stream()):
    tensor = torch.zeros(1 << 22, device="cuda")
    for _ in range(200):
        tensor += 1
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    doubled = tensor * 2  # on this stream, without waiting for the device
    assert torch.all(doubled == 400 * size).item()
tensor = torch.full((1000,), 1.0, device="cuda")
work = dist.all_reduce(tensor, async_op=True)
work.synchronize()
assert tensor.cpu().tolist() == [size] * 1000
tensor = torch.full((1000,), 1.0, device="cuda")
future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] + 1)
assert future.wait().cpu().tolist() == [size + 1] * 1000


def many_steps(done):
    changed = done.value()[0]
    for _ in range(50):
        changed = changed + 1
    return changed


with torch.cuda.stream(torch.cuda.Stream()):  # which comes after what the callback asked another one
    tensor = torch.full((1000,), 1.0, device="cuda")
    future = dist.all_reduce(tensor, async_op=True).get_future().then(many_steps)
    doubled = future.wait() * 2
    assert doubled.tolist() == [2 * (size + 50)] * 1000
host = torch.ones(2)
dist.all_reduce(host)
assert host.tolist() == [size, size]
objects = [dist.get_rank()]
dist.broadcast_object_list(objects, 1)
assert objects == [1]
dist.destroy_process_group()
print("good", flush=True)
"""


@pytest.mark.parametrize("backend", ["aiodist", "cpu:aiodist,cuda:aiodist"])
def test_a_model_on_the_gpu_trains_as_one_process_does(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    assert run_job(script, 2, backend).count("equal") == 2


def test_streams_futures_and_both_devices(tmp_path: Path) -> None:
    script = tmp_path / "streams.py"
    script.write_text(STREAMS)
    assert run_job(script, 2).count("good") == 2


@pytest.mark.parametrize(
    ("program", "size"),
    [
        ("operations:every_operation", 3),
        ("operations:uneven_all_to_all", 3),
        ("operations:other_dtypes", 3),
        ("operations:messages", 3),
        ("operations:coalescing", 3),
        ("operations:functional_collectives", 3),
        ("operations:futures", 3),
        ("sharded:fsdp", 3),
        ("sharded:zero", 3),
        ("parallel:pipeline", 3),
        ("parallel:tensor_parallel", 2),
        ("parallel:sharded_replicas", 4),
        ("parallel:autograd", 3),
    ],
)
def test_programs_of_the_cpu_run_on_the_gpu(program: str, size: int) -> None:
    assert run_job(PROGRAM, size, program).count("good") == size
