"""Every operation goes to the backend of its tensors' device; no GPU is needed to see where."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends.mixed import MixedBackend
from aiodist.groups.backend import CollectiveBackend
from aiodist.testing.in_process import run_ranks
from tests.operations.design import MOVING, NO_OP, REDUCING, Case
from tests.operations.programs import PROGRAMS, Rank

MIX = "cpu:torch:gloo,cuda:aiodist"


async def test_every_operation_on_the_cpu_goes_to_its_backend() -> None:
    wrong: list[str] = []

    async def body(rank: int) -> None:
        group = dist.group.WORLD
        assert isinstance(group.backend, MixedBackend)
        assert dist.get_backend() == MIX
        assert dist.get_backend_config() == MIX
        # Only torch's group refuses this.
        with pytest.raises(dist.InvalidUsageError, match='"torch:gloo" cannot reduce int16'):
            dist.all_reduce(np.zeros(2, np.int16))
        for operation in MOVING + REDUCING:
            if not operation.endswith("_uneven") or operation.startswith("all_to_all"):
                op = "SUM" if operation in REDUCING else NO_OP
                case = Case(operation, 2, "odd", "float32", op, "inproc", "mixed", "contiguous")
                ranks = Rank(case, rank)
                await PROGRAMS[operation](ranks)
                wrong.extend(ranks.wrong())
        await dist.barrier()

    await run_ranks(2, body, backend=MIX)
    assert not wrong


async def test_devices_without_a_backend() -> None:
    async def body(rank: int) -> None:
        with pytest.raises(dist.InvalidUsageError, match="tensor is on meta, and backend 'cpu:aio"):
            dist.all_reduce(torch.zeros(2, device="meta"))
        with pytest.raises(dist.InvalidUsageError, match=r"tensors\[1\] is on meta"):
            dist.all_reduce_coalesced([torch.zeros(2), torch.zeros(2, device="meta")])

    await run_ranks(1, body, backend="cpu:aiodist")


async def test_a_message_to_the_other_backends_tensor_is_refused() -> None:
    """As a CUDA tensor that is received into a CPU tensor, and the reverse, in one mixed group."""

    async def body(rank: int) -> None:
        group = dist.group.WORLD
        mixed = group.backend
        assert isinstance(mixed, MixedBackend)
        native = mixed._by_device["cuda"]
        two = torch.ones(2)  # as many bytes as an announcement
        other = "another backend of this group"
        if rank == 0:
            sending = dist.isend(two, 1)
            await native.send(two, 1, 8, None)
            await dist.send_object_list(["sent"], 1, group)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        else:
            with pytest.raises(dist.InvalidUsageError, match=other):
                await native.recv(torch.zeros(2), 0, 0, None)
            with pytest.raises(dist.InvalidUsageError, match=other):
                await dist.recv(torch.zeros(2), 0, tag=8)
            await dist.recv_object_list([None], 0, group)
        await dist.barrier()

    await run_ranks(2, body, backend=MIX)


class Backend:
    """Says who was called with what; stands for a backend whose device is not here."""

    is_fragile = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, operation: str) -> Any:
        return lambda *args, **kwargs: (self.name, operation, args, kwargs)


def test_each_operation_asks_the_device_and_hands_on_all_arguments() -> None:
    cpu: Any = Backend("cpu")
    meta: Any = Backend("meta")
    mixed = MixedBackend("a mix", {"cpu": cpu, "meta": meta})
    tensor = torch.zeros(2, device="meta")
    for operation in sorted(CollectiveBackend.__abstractmethods__ - {"check_tensor"}):
        names = list(inspect.signature(getattr(CollectiveBackend, operation)).parameters)[1:]
        lists = {"tensors", "outputs", "inputs"}
        args: list[Any] = [
            [tensor] if name in lists else tensor if name in ("tensor", "output") else name
            for name in names
        ]
        is_about_tensors = any(each is tensor or each == [tensor] for each in args)
        if "object" in operation or operation == "recv_new":
            is_about_tensors = False
        found = getattr(mixed, operation)(*args)
        assert found == ("meta" if is_about_tensors else "cpu", operation, tuple(args), {})
