"""How long the memory of MPI's requests lives, without MPI."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.mpi_agreement import MpiAgreement
from aiodist.backends.mpi.mpi_meeting import _finished
from aiodist.backends.mpi.mpi_operations import MpiOperations
from aiodist.backends.mpi.poller import Poller
from aiodist.backends.mpi.reductions import MpiReduction
from aiodist.collectives import calls
from aiodist.collectives.calls import Call
from aiodist.completion import Driver
from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.tensors import dtype_named, reduction
from aiodist.types import ReduceOp

SIZE = 3


class Mpi:
    """MPI and a communicator of rank 0. A request keeps no memory alive, as mpi4py's of a reduction."""

    TAG_UB = 0
    IN_PLACE = BYTE = UINT64_T = SUM = None
    DOUBLE = SimpleNamespace(Get_size=lambda: 8)
    DATATYPE_NULL = None
    Exception = SystemError

    def __init__(self) -> None:
        self.has_ended = False
        self.buffer = SimpleNamespace(fromaddress=self._at)
        self.Get_attr = lambda key: 1 << 20

    def _at(self, address: int, nbytes: int, readonly: bool) -> bytearray:
        return bytearray(nbytes)

    def _start(self, *_: object) -> Any:
        return SimpleNamespace(Test=lambda status: self.has_ended)

    Ibcast = Ireduce = Iallreduce = Iallgatherv = Igatherv = Iscatterv = Ialltoallv = _start
    Ireduce_scatter = Ireduce_scatter_block = _start


Views = Sequence[memoryview]
FLOAT64 = dtype_named("float64")


def summing() -> MpiReduction:
    assert FLOAT64 is not None
    ours = reduction(ReduceOp.SUM, FLOAT64, SIZE)
    return MpiReduction(ours, ReduceOp.SUM, FLOAT64)


CALLS: dict[str, Callable[[Views], Call]] = {
    "broadcast": lambda views: calls.Broadcast(0, views[0]),
    "reduce at its root": lambda views: calls.Reduce(0, views[0], summing()),
    "reduce": lambda views: calls.Reduce(1, views[0], summing()),
    "all_reduce": lambda views: calls.AllReduce(views[0], summing()),
    "all_gather of one piece": lambda views: calls.AllGather(thirds(views[0])),
    "gather at its root": lambda views: calls.Gather(0, views[0], thirds(views[1])),
    "gather": lambda views: calls.Gather(1, views[0], None),
    "scatter at its root": lambda views: calls.Scatter(0, thirds(views[0]), views[1]),
    "scatter": lambda views: calls.Scatter(1, None, views[0]),
    "reduce_scatter": lambda views: calls.ReduceScatter(thirds(views[0]), views[1], summing()),
    "all_to_all": lambda views: calls.AllToAll(thirds(views[0]), thirds(views[1])),
}


def thirds(view: memoryview) -> list[memoryview]:
    length = len(view) // SIZE
    return [view[start : start + length] for start in range(0, len(view), length)]


@pytest.fixture
def mpi() -> Mpi:
    return Mpi()


@pytest.fixture
async def gate(mpi: Mpi) -> Gate:
    gate = Gate()
    gate.open(mpi, mpi, Poller(mpi, asyncio.get_running_loop(), SpinPolicy(lambda _: None)))
    return gate


@pytest.mark.parametrize("name", CALLS)
async def test_memory_lives_until_mpi_has_completed_a_cancelled_collective(
    mpi: Mpi, gate: Gate, name: str
) -> None:
    """The task, its group and its communicator are gone, and MPI still writes to the memory."""
    arrays = [np.ones(3), np.ones(3)]
    call = CALLS[name]([array.data.cast("B") for array in arrays])
    views = [weakref.ref(array) for array in arrays]
    del arrays
    used = [view for view in views if view() is not None]
    ended: list[object] = []  # not the error: its traceback would keep the memory
    run: Any = MpiOperations(None, gate, MpiAgreement(gate, SIZE, False))  # type: ignore[arg-type]
    channel: Any = SimpleNamespace(rank=0)
    driver: Driver[None] = Driver(run(channel, call), lambda _, error: ended.append(type(error)))
    driver.start()
    driver.throw(GeneratorExit())
    del run, call, driver
    assert not gate.poller.close()
    gc.collect()
    assert ended == [GeneratorExit]
    assert all(view() is not None for view in used)


async def test_memory_is_freed_when_mpi_has_completed_the_request(mpi: Mpi, gate: Gate) -> None:
    array = np.ones(3)
    used = weakref.ref(array)
    gate.poller.watch(mpi.Iallreduce(), array)
    del array
    gate.poller.poll()
    assert used() is not None
    mpi.has_ended = True
    gate.poller.poll()
    gc.collect()
    assert used() is None


async def test_the_sum_by_which_ranks_compare_lives_until_mpi_has_completed_it(
    mpi: Mpi, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[weakref.ref[Any]] = []

    def start(_: object, buffer: Any, op: object) -> Any:
        sums.append(weakref.ref(buffer[0]))
        return SimpleNamespace(Test=lambda status: False)

    monkeypatch.setattr(mpi, "Iallreduce", start, raising=False)
    group: Any = SimpleNamespace(rank=0, size=SIZE, ranks=range(SIZE), id=1)
    messenger: Any = SimpleNamespace()
    context = CollectiveContext(group, messenger, 0, Fingerprint("barrier"))
    comparing = MpiAgreement(gate, SIZE, True).compare(context)
    driver: Driver[None] = Driver(comparing, lambda *_: None)
    driver.start()
    driver.throw(GeneratorExit())
    del comparing, driver
    assert not gate.poller.close()
    gc.collect()
    assert sums[0]() is not None


async def test_the_memory_of_a_meeting_lives_on_when_not_all_ranks_come(mpi: Mpi) -> None:
    hosts = np.ones(3)
    used = weakref.ref(hosts)
    meeting = _finished(mpi._start(), hosts, SIZE, Deadline(1e-6))
    del hosts
    with pytest.raises(StoreTimeoutError):
        await meeting
    del meeting
    gc.collect()
    assert used() is not None
