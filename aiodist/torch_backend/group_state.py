"""What every group of the torch backend has: its names, its lifetime, and how its operations start."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
from torch._C import _distributed_c10d as c10d

from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_ranks
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.observe.text_table import ranges
from aiodist.sync.torch_group import SharedWorld
from aiodist.tensors.cuda_streams import on_callers_stream
from aiodist.torch_backend import work_registry
from aiodist.torch_backend.devices import DEVICES, Devices
from aiodist.torch_backend.futures import Completions, completed_at_once, level_here
from aiodist.torch_backend.options import BackendOptions, seconds_of
from aiodist.torch_backend.ownership import caller_keeps, work_of_cpp
from aiodist.torch_backend.profiling import record
from aiodist.torch_backend.submission import Operation, Operations, Started, all_started
from aiodist.torch_backend.torch_work import TorchWork
from aiodist.torch_backend.worlds import TorchWorld

Tensor = torch.Tensor
Start = Callable[[GroupEngine, float | None], Work[Any] | Iterator[Work[Any]]]
"""Starts operations of a group of the engine, with a timeout in seconds: one, or one after the other."""

# torch's stubs overload each method for calls that a Python subclass does not get.
_Base: Any = c10d.ProcessGroup


class Membership(_Base):  # type: ignore[misc]  # see above
    """A rank's membership in a group of the engine, as torch sees it; `TorchGroup` adds the operations."""

    def __init__(self, world: TorchWorld, group: GroupEngine, owns_world: bool) -> None:
        """``owns_world``: the world closes with this group."""
        super().__init__(group.rank, group.size)
        self._world = world
        self._engine = group
        self._owns_world = owns_world
        self.shared: SharedWorld | None = None
        """The world of ``aiodist.sync``, where this group stands for its default group."""
        self._pid = os.getpid()
        self._collectives = 0
        self._group_name = ""
        self._group_desc = ""
        self._levels = {0: Completions()}
        self._coalesced: list[TorchWork] | None = None
        self._parts: list[Self] = []
        self._devices = Devices(self)
        self._on_drop = weakref.finalize(
            self, _begin_close, world, None if owns_world else group, self._levels, self._pid
        )
        self._on_drop.atexit = False  # the world's own end is in order then

    # -- how they start

    def _start(
        self,
        name: str,
        start: Start,
        tensors: Sequence[Tensor],
        opts: Any,
        value: list[Any] | None = None,
    ) -> c10d.Work:
        """Start collectives; ``tensors`` are what they write. ``value``: of the future, None for these."""
        self._collectives += 1
        completions = self._completions()
        completions.wait_for_callbacks()
        # A caller that would only wait runs the operation itself.
        at_once = not getattr(opts, "asyncOp", True) and self._coalesced is None
        # The caller of such an operation changes no timeout before it starts.
        timeout = seconds_of(opts) if at_once else self._timeout_of_call(opts)

        def run() -> Started:
            self._check_device(tensors)
            works = start(self._engine, timeout)
            return works if isinstance(works, Work) else all_started(works)

        operation = self._submit(name, run, at_once)
        return self._handed(TorchWork(operation, tensors, completions, value))

    def _timeout_of_call(self, opts: Any = None) -> float:
        """Return the seconds that an operation has which is called now; infinity if it has no limit.

        The loop may start it later, when the group has another timeout.
        """
        seconds = seconds_of(opts) or self._engine.timeout
        return math.inf if seconds is None else seconds

    def _check_device(self, tensors: Sequence[Tensor]) -> None:
        """Refuse tensors that were meant for another backend; the engine compares all devices with one."""
        if tensors:
            self._devices.check(tensors[0].device)

    def _submit(self, name: str, start: Callable[[], Started], at_once: bool = False) -> Operation:
        # CUDA tensors: copies begin after what the calling thread's stream has to do.
        operation = Operation(self._world.post, on_callers_stream(start), record(name))
        if self._is_inherited:
            operation.end(
                InvalidUsageError(
                    "this group belongs to the process that forked this one; call "
                    "init_process_group here"
                )
            )
        elif at_once and self._world.can_block:
            try:
                self._world.complete(start)
            except Exception as error:  # noqa: BLE001  # raised by the wait that follows
                operation.end(error)
            else:
                operation.end(None)
        else:
            operation.submit()
        return operation

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child of the group's: it has no thread of the group."""
        return os.getpid() != self._pid

    def _completions(self) -> Completions:
        """Return the object that completes the futures of operations that the calling thread starts."""
        if self._is_inherited:
            return completed_at_once()
        level = level_here()
        known = self._levels.get(level)
        return known or self._levels.setdefault(level, Completions(level))

    def _handed(self, work: TorchWork) -> c10d.Work:
        """Return what the caller of a group's method gets for ``work``."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        if not caller_keeps(type(self)):
            return work_of_cpp(work)  # C++ enters in the registry what it asked for
        work.is_registered = work_registry.enter(work, work.tensors)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> TorchWork:
        """Return one handle for all operations started since ``_start_coalescing``, which run already."""
        works, self._coalesced = self._coalesced or [], None
        operations = Operations([work.operation for work in works])
        tensors = [tensor for work in works for tensor in work.tensors]
        return TorchWork(operations, tensors, self._completions())

    # -- the group

    # torch asks a group's backend for a device what it can do; here the group itself answers.
    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    _supports_time_estimate = False  # its name since torch 2.15, as are the names of the last four
    supports_shrinking = False
    supports_abort_hooks = False
    supports_completion_hooks = False
    supports_reconfigure = False
    supports_window = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: FSDP2 then allocates the tensors of its collectives itself."""
        return False

    # torch calls these two of a group that supports splitting, where it was given a device.

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing: ranks connect on first use."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: only members take part in a split."""

    @property
    def _device_types(self) -> list[torch.device]:
        return self._devices.served

    def _get_backend(self, device: torch.device) -> Self:
        self._devices.check(device)
        if device.type not in DEVICES:
            raise InvalidUsageError(
                f'backend "aiodist" serves {" and ".join(DEVICES)} tensors; make a group with a '
                f"backend for {device.type}"
            )
        return self

    @property
    def options(self) -> BackendOptions:
        return BackendOptions(self._engine)

    def getBackendName(self) -> str:  # noqa: N802  # C++ asks for it by this name
        return "aiodist"

    def name(self) -> str:
        return "aiodist"

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._group_desc = desc

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives of this group the program has called on this rank."""
        return self._collectives

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all ranks count from 0."""

    def members(self, ranks: Sequence[int]) -> list[int]:
        """Return the engine's global ranks of some ranks of this group."""
        return [self._engine.ranks[rank] for rank in ranks]

    def subgroup(self, name: str, ranks: Sequence[int], timeout: timedelta | None) -> Self:
        """Return a group of global ranks over the same connections. ``timeout``: None for the group's."""
        seconds = self._engine.timeout if timeout is None else to_seconds(timeout)
        return type(self)(self._world, self._world.subgroup(name, ranks, seconds), False)

    def splitGroup(  # noqa: N802
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        name: str | None = None,
        desc: str | None = None,
        devices: Any = None,
    ) -> Self | None:
        """Return the group of some of this group's ranks; only these need to call it."""
        chosen = sorted(check_ranks(ranks, self.size(), "the group"))
        if self.rank() not in chosen:
            return None
        # The ranks are in it: a rank may be in parts that others are not in, and makes more of them.
        label = name or f"{self._engine.group_name}:split:{ranges(chosen)}"
        part = self.subgroup(label, self.members(chosen), timeout)
        part.setGroupName(label)
        part.setGroupDesc(desc or "")
        # C++ does not keep the Python half of an open part.
        self._parts = [*(each for each in self._parts if each._on_drop.alive), part]
        return part

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations without a timeout of their own."""
        self._engine.set_timeout(timeout)

    def shutdown(self) -> None:
        """Close the group, after some seconds for operations in progress."""
        self._close()

    def abort(self) -> None:
        """Close the group at once; operations in progress fail, here and on the other ranks."""
        self._close(0.0)

    def _close(self, *seconds: float) -> None:
        self._on_drop.detach()
        try:
            if os.getpid() == self._pid:
                if self._owns_world:
                    self._world.close(*seconds)
                else:
                    self._world.remove([self._engine], *seconds)
        finally:
            for completions in list(self._levels.values()):
                completions.close()


def _begin_close(
    world: TorchWorld, part: GroupEngine | None, levels: dict[int, Completions], pid: int
) -> None:
    """Begin to close a group without references, or, with ``part`` None, its world.

    A finalizer: it runs in any thread, the event loop's too, and waits for nothing.
    """
    if os.getpid() == pid:
        world.begin_close(part)
    for completions in list(levels.values()):
        completions.close(join=False)
