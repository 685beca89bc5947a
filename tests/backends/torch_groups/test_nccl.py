"""`Nccl`'s own lines, with Gloo behind the name of NCCL's group and nothing behind CUDA's calls.

It shows that the calls fit together. What NCCL and a device do is left to ``tests/gpu``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

import aiodist as dist
from aiodist.backends.torch_groups.backend import TorchBackend
from aiodist.backends.torch_groups.kinds import Nccl, all_say, check_devices
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of
from tests.gpu.operations import differing, every_operation


class Handle:
    """Has no future, as NCCL's has none that helps: only ``wait``."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    def wait(self) -> None:
        assert current() != CALLERS, (
            "what the caller asks for next would wait for this rank's peers"
        )
        if self._work is not None:
            self._work.wait()


class Group:
    """In the place of ProcessGroupNCCL; it is opened at its first operation."""

    class Options:
        _timeout: timedelta

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self._made = store, rank, size, options._timeout
        self._gloo: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._gloo is None:
            store, rank, size, timeout = self._made
            self._gloo = torch_dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        function = getattr(self._gloo, name)
        return lambda *arguments: Handle(function(*arguments))

    def _reduce_scatter_base(self, output: Any, inputs: Any, options: Any) -> Handle:
        reducing = torch_dist.AllreduceOptions()
        reducing.reduceOp = options.reduceOp
        whole = inputs.clone()
        self.allreduce([whole], reducing).wait()
        output.copy_(whole.view(self._made[2], -1)[self._made[1]])
        return Handle()

    def shutdown(self) -> None:
        if self._gloo is not None:
            self._gloo.shutdown()

    abort = shutdown


CALLERS = "the caller's stream"
_entered = threading.local()


def current(device: Any = None) -> Any:
    """This thread's stream."""
    return getattr(_entered, "stream", CALLERS)


@contextlib.contextmanager
def on(stream: Any) -> Iterator[None]:
    before, _entered.stream = current(), stream
    yield
    _entered.stream = before


class Event:
    def __init__(self) -> None:
        self._recorded = False

    def record(self, stream: Any = None) -> None:
        self._recorded = True

    def query(self) -> bool:
        assert self._recorded
        return True


class Stream:
    def __init__(self, device: torch.device, priority: int) -> None:
        self.device = device

    def wait_event(self, event: Event) -> None:
        assert event.query()


class OnTheHost(Nccl):
    """Its tensors are on the CPU, and every rank has a device of its own."""

    device = "cpu"

    def place(self, chosen: Any) -> torch.device:
        return torch.device("cpu")

    def meet(self, store: Any, ranks: Any, own: int, chosen: Any) -> None:
        check_devices(all_say(store, f"GPU-{ranks[own]}", ranks, own))


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_operation(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", on)

    async def body(rank: int) -> None:
        group = await dist.new_group()
        engine_of(group).backend = TorchBackend(engine_of(group), OnTheHost())
        for dtype in (torch.float32, torch.int64):
            for count in (0, 7):
                expected = await every_operation("cpu", dtype, count)
                found = await every_operation("cpu", dtype, count, group)
                assert differing(found, expected) == [], (dtype, count)

    await run_ranks(size, body)
