"""Which device's tensors go where, and training whose tensors go through a copy in host memory."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from aiodist.torch_backend.group import TorchGroup
from tests.backends.copy_engine import copied_by_thread
from tests.torch_backend.programs.ddp import equals_whole_batch, error_of


def begin(backend: str, name: str, rank: int, size: int) -> TorchGroup:
    """The default group anew."""
    if dist.is_initialized():
        dist.destroy_process_group()
    method = f"file://{os.environ['TEST_FOLDER']}/{name}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    assert isinstance(dist.group.WORLD, TorchGroup)
    return dist.group.WORLD


def served(rank: int, size: int) -> None:
    """Groups serve the kinds of device that name the backend, and answer for them to torch."""
    cpu, cuda, meta = (torch.device(kind) for kind in ("cpu", "cuda", "meta"))
    for number, (backend, kinds) in enumerate(
        [
            ("aiodist", {cpu, cuda} if torch.cuda.is_available() else {cpu}),
            ("cpu:aiodist,cuda:aiodist", {cpu, cuda}),
            ("cuda:aiodist,cpu:aiodist", {cpu, cuda}),
            ("cpu:aiodist", {cpu}),
            ("cpu:aiodist,cuda:nccl", {cpu}),
            ("cpu:aiodist,cuda:gloo", {cpu}),
        ]
    ):
        group = begin(backend, f"served{number}", rank, size)
        assert set(group._device_types) == kinds, backend
        for device in (cpu, cuda):
            if device in kinds:
                assert group._get_backend(device) is group
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=dist.new_group())
        assert tensor.item() == size
        objects = [f"from {rank}"]
        dist.broadcast_object_list(objects, 1)
        assert objects == ["from 1"]
    said = error_of(lambda: group._get_backend(cuda))
    assert 'new_group(backend="gloo")' in said, said
    said = error_of(lambda: group._get_backend(meta))
    assert "serves cpu and cuda tensors" in said, said


def refused(rank: int, size: int) -> None:
    """A tensor that was meant for another backend does not go by this one, and nothing breaks."""
    group = begin("cpu:aiodist,meta:gloo", "refused", rank, size)
    elsewhere = torch.ones(2, device="meta")
    other = 1 - rank
    for call in (
        lambda: dist.all_reduce(elsewhere),
        lambda: dist.all_reduce(elsewhere, async_op=True).wait(),
        lambda: dist.send(elsewhere, other),
        lambda: dist.recv(elsewhere, other),
        lambda: group._get_backend(elsewhere.device),
    ):
        said = error_of(call)
        assert 'backend "gloo" was named for meta tensors' in said, said
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def staged_training(rank: int, size: int) -> None:
    """DDP where each tensor goes through a staged copy, as CUDA tensors do."""
    with copied_by_thread() as engine:
        equals_whole_batch(rank, size)
    assert {what for what, _ in engine.asked} == {"load", "store"}
