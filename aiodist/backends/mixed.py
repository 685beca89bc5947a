"""A group with a backend for each kind of device: every tensor goes where its device says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from aiodist.completion import T
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.groups.collective_backend import (
    CollectiveBackend,
    ObjectStream,
    Start,
    StreamSettings,
)
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.messenger import Messenger
from aiodist.groups.operation import Collective, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord


class MixedBackend(CollectiveBackend):
    """Hands each operation to the backend of its tensor's device, which checks the rest.

    An operation without a tensor, such as a barrier, an agreement or one on objects, goes to the backend
    of the CPU. If the CPU has none, it goes to the first backend.
    """

    def __init__(self, name: str, by_device: Mapping[str, CollectiveBackend]) -> None:
        self.name = name
        self.by_device = dict(by_device)
        """The backend of each kind of device."""
        self._first = by_device.get("cpu") or next(iter(by_device.values()))
        self._all = tuple(dict.fromkeys(by_device.values()))
        self.why_fixed = next((b.why_fixed for b in self._all if b.why_fixed), "")

    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        return self._backend_for(operation).start(operation, timeout)

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        return self._backend_for(operation).prepare(operation, start)

    def ends_group(self, fingerprint: Fingerprint | None, error: BaseException) -> bool:
        # A disagreement about a collective over aiodist's streams may fail a later one that MPI has begun.
        return bool(self.why_fixed) or any(b.ends_group(fingerprint, error) for b in self._all)

    def _backend_for(self, operation: Operation[Any]) -> CollectiveBackend:
        tensor = operation.placed
        return self._first if tensor is None else self.backend_of(tensor)

    def _serve(self, device: str, backend: CollectiveBackend) -> None:
        """Let ``backend`` serve the tensors of ``device`` from now on."""
        self.by_device[device] = backend
        self._all = (*self._all, backend)

    def backend_of(self, tensor: Tensor) -> CollectiveBackend:
        """Return the backend of the device of ``tensor``. Raises InvalidUsageError if it has none."""
        device = getattr(tensor, "device", "cpu")  # numpy's arrays say "cpu", or nothing
        kind = device if isinstance(device, str) else getattr(device, "type", "cpu")
        backend = self.by_device.get(kind)
        if backend is None:
            served = " and ".join(self.by_device)
            raise InvalidUsageError(
                f"the tensor is on {device}, and backend {self.name!r} serves {served} tensors: "
                f"copy it there, or make a group that names a backend for {kind}"
            )
        return backend

    async def ready(self, deadline: Deadline) -> None:
        for backend in self._all:
            await backend.ready(deadline)

    def close(self) -> None:
        with ExitStack() as stack:  # all are closed, whatever one of them raises
            for backend in reversed(self._all):
                stack.callback(backend.close)

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        self.backend_of(tensor).check_tensor(tensor, writable=writable)

    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        return self._first.open_stream(settings)


class OverP2P:
    """``group`` with aiodist's own point-to-point messages for the operations that start here.

    For the backends of a mixed group in which another backend, MPI, has brought its own messenger.
    """

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self.messenger: Messenger = group.endpoint
        for name in ("collective", "send", "recv", "recv_posted", "message"):
            setattr(self, name, partial(getattr(group, name), messenger=self.messenger))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def start_plan(self, *args: Any) -> None:
        """Return None: no operation completes at once over these messages."""
