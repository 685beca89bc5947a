"""Every operation goes to the backend of its tensors' device; no GPU is needed to see where."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends.mixed import MixedBackend
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.message import Recv, RecvNew, Send, SendObject
from aiodist.groups.object_operation import BroadcastObject
from aiodist.groups.operation import (
    Agree,
    AllGather,
    AllGatherCoalesced,
    AllGatherNew,
    AllGatherSingle,
    AllReduce,
    AllReduceCoalesced,
    AllToAll,
    AllToAllSingle,
    Barrier,
    Broadcast,
    BroadcastNew,
    Gather,
    GatherSingle,
    Operation,
    Reduce,
    ReduceScatter,
    ReduceScatterSingle,
    Scatter,
)
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of
from tests.operations.design import MOVING, NO_OP, REDUCING, Case
from tests.operations.programs import PROGRAMS, Rank

MIX = "cpu:torch:gloo,cuda:aiodist"


async def test_every_operation_on_the_cpu_goes_to_its_backend() -> None:
    wrong: list[str] = []

    async def body(rank: int) -> None:
        group = dist.group.WORLD
        assert isinstance(engine_of(group).backend, MixedBackend)
        assert dist.get_backend() == MIX
        assert dist.get_backend_config() == MIX
        # Only torch's group refuses this.
        with pytest.raises(dist.InvalidUsageError, match='"torch:gloo" cannot reduce int16'):
            dist.all_reduce(np.zeros(2, np.int16))
        for operation in MOVING + REDUCING:
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
        mixed = engine_of(group).backend
        assert isinstance(mixed, MixedBackend)
        native = mixed.by_device["cuda"]
        two = torch.ones(2)
        other = "another backend of this group"
        if rank == 0:
            for tag in (0, 1):
                with pytest.raises(dist.InvalidUsageError, match="rank 1 received the message"):
                    await dist.send(two, 1, tag=tag)
            await native.start(Send(two, 1, 8))  # it has left: its end is no concern of the sender
        else:
            with pytest.raises(dist.InvalidUsageError, match=other):
                await native.start(Recv(torch.zeros(2), 0, 0))
            with pytest.raises(dist.InvalidUsageError, match=other):
                await native.start(RecvNew(0, 1))
            with pytest.raises(dist.InvalidUsageError, match=other):
                await dist.recv(torch.zeros(2), 0, tag=8)
        await dist.barrier()
        if rank == 0:  # and the group is as good as before
            await dist.send(two, 1)
        else:
            await dist.recv(two.zero_(), 0)
            assert two.tolist() == [1, 1]

    await run_ranks(2, body, backend=MIX)


@pytest.mark.parametrize("transport", ["inproc", "shm"])
@pytest.mark.parametrize("count", [3, 100_000])
async def test_a_collective_of_different_devices_is_refused_on_all_ranks(
    count: int, transport: str
) -> None:
    """As a CUDA tensor on one rank and CPU tensors on the others, in one mixed group."""

    async def body(rank: int) -> None:
        group = await dist.new_group(backend=MIX)
        mixed = engine_of(group).backend
        assert isinstance(mixed, MixedBackend)
        backend = mixed.by_device["cuda" if rank == 1 else "cpu"]
        with pytest.raises(dist.CollectiveMismatchError, match="on GPUs on all"):
            await backend.start(AllReduce(torch.ones(count), dist.ReduceOp.SUM))
        tensor = torch.ones(1)
        await dist.all_reduce(tensor)  # of another group
        assert tensor.item() == 3

    await run_ranks(3, body, transport)


class Backend:
    """Says who was called with what; stands for a backend whose device is not here."""

    why_fixed = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, operation: str) -> Any:
        return lambda *args, **kwargs: (self.name, operation, args, kwargs)


TENSOR = torch.zeros(2, device="meta")
SUM = dist.ReduceOp.SUM

ON_ITS_DEVICE: list[Operation[Any]] = [
    Broadcast(TENSOR, 0),
    Reduce(TENSOR, 0, SUM),
    Gather(TENSOR, None, 0),
    GatherSingle(TENSOR, None, 0),
    Scatter(TENSOR, None, 0),
    AllReduce(TENSOR, SUM),
    AllReduceCoalesced([TENSOR], SUM),
    AllGather([], TENSOR),
    AllGatherSingle(TENSOR, TENSOR),
    AllGatherCoalesced([], [TENSOR]),
    ReduceScatter(TENSOR, [], SUM),
    ReduceScatterSingle(TENSOR, TENSOR, SUM),
    AllToAll([], [TENSOR]),
    AllToAllSingle(TENSOR, TENSOR),
    Send(TENSOR, 0, 0),
    Recv(TENSOR, 0, 0),
]
ON_THE_FIRST: list[Operation[Any]] = [
    Barrier(),
    Agree("monitored_barrier", 0),
    # One backend on all ranks, whose tensors may be on different devices.
    BroadcastNew(TENSOR, 0),
    AllGatherNew(TENSOR),
    BroadcastObject("broadcast_object", TENSOR, lambda obj: obj, 0, False),
    RecvNew(0, 0),
    SendObject(TENSOR, 0, 0, False),
    AllToAll([], []),  # which that backend refuses
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_operation_goes_to_the_backend_of_its_device(device: str) -> None:
    mixed = MixedBackend("a mix", {name: cast(Any, Backend(name)) for name in ("cpu", "meta")})
    for operation in ON_THE_FIRST if device == "cpu" else ON_ITS_DEVICE:
        assert cast(Any, mixed.start(operation, 3.0)) == (device, "start", (operation, 3.0), {})


@pytest.mark.parametrize("why_fixed", ["", "MPI has the ranks"])
def test_a_failure_ends_the_group_if_it_may_reach_what_mpi_has_begun(why_fixed: str) -> None:
    def backend(ends: bool, fixed: str = "") -> Any:
        return Mock(why_fixed=fixed, ends_group=lambda fingerprint, error: ends)

    lasting = MixedBackend("a mix", {"cpu": backend(False, why_fixed), "cuda": backend(False)})
    assert lasting.ends_group(Fingerprint("barrier"), ValueError()) is bool(why_fixed)
    mixed = MixedBackend("a mix", {"cpu": backend(False), "cuda": backend(True)})
    assert mixed.ends_group(Fingerprint("barrier"), ValueError())


def test_all_backends_are_closed_although_one_of_them_raises() -> None:
    closed: list[str] = []

    class Backend:
        why_fixed = ""

        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            raise RuntimeError(self.name)

    kinds = ("cpu", "cuda", "meta")
    mixed = MixedBackend("a mix", {name: cast(Any, Backend(name)) for name in kinds})
    with pytest.raises(RuntimeError):
        mixed.close()
    assert closed == [*kinds]
