"""A group with a backend for each kind of device: every tensor goes where its device says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiodist.completion import T
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import CollectiveBackend, ObjectStream, Received, Tensor
from aiodist.groups.work import Work
from aiodist.types import ReduceOp


class MixedBackend(CollectiveBackend):
    """Hands each operation to the backend of its first tensor's device, and that checks the rest.

    What has no tensor (objects, barrier, agreements, a receive without a buffer) goes to the
    first backend, that of the CPU where there is one.
    """

    def __init__(self, name: str, by_device: Mapping[str, CollectiveBackend]) -> None:
        self.name = name
        self._by_device = dict(by_device)
        self._first = by_device.get("cpu") or next(iter(by_device.values()))
        self._all = tuple(dict.fromkeys(by_device.values()))
        self.is_fragile = any(backend.is_fragile for backend in self._all)
        self.why_fixed = next((b.why_fixed for b in self._all if b.why_fixed), "")
        if host := by_device.get("cpu"):
            # Straight there. It remembers tensors of the CPU, and leaves those elsewhere alone.
            self.run_cached = host.run_cached  # type: ignore[method-assign]
            self.run_cached_between = host.run_cached_between  # type: ignore[method-assign]
            self.run_cached_without_tensor = host.run_cached_without_tensor  # type: ignore[method-assign]
            self.send_cached = host.send_cached  # type: ignore[method-assign]
            self.recv_cached = host.recv_cached  # type: ignore[method-assign]

    def _serve(self, device: str, backend: CollectiveBackend) -> None:
        """From now on ``backend`` has the tensors of ``device``."""
        self._by_device[device] = backend
        self._all = (*self._all, backend)

    def _for(self, tensor: Tensor) -> CollectiveBackend:
        device = getattr(tensor, "device", "cpu")  # numpy's arrays say "cpu", or nothing
        kind = device if isinstance(device, str) else getattr(device, "type", "cpu")
        backend = self._by_device.get(kind)
        if backend is None:
            served = " and ".join(self._by_device)
            raise InvalidUsageError(
                f"the tensor is on {device}, and backend {self.name!r} serves {served} tensors: "
                f"copy it there, or make a group that names a backend for {kind}"
            )
        return backend

    async def ready(self, deadline: Deadline) -> None:
        for backend in self._all:
            await backend.ready(deadline)

    def close(self) -> None:
        for backend in self._all:
            backend.close()

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        self._for(tensor).check_tensor(tensor, writable=writable)

    # -- messages

    def send(self, tensor: Tensor, dst: int, tag: int, timeout: float | None) -> Work[None]:
        return self._for(tensor).send(tensor, dst, tag, timeout)

    def recv(self, tensor: Tensor, src: int | None, tag: int, timeout: float | None) -> Work[int]:
        return self._for(tensor).recv(tensor, src, tag, timeout)

    def recv_new(self, src: int | None, tag: int, timeout: float | None) -> Work[Received]:
        return self._first.recv_new(src, tag, timeout)

    def send_object(
        self, obj: Any, dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        return self._first.send_object(obj, dst, tag, pickle, timeout)

    def recv_object(
        self,
        finish: Callable[[Any, int], T],
        src: int | None,
        tag: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        return self._first.recv_object(finish, src, tag, pickle, timeout)

    def open_stream(
        self, peer: int, tag: int, window: int, max_bytes: int, allow_pickle: bool
    ) -> ObjectStream:
        return self._first.open_stream(peer, tag, window, max_bytes, allow_pickle)

    # -- collectives

    def barrier(self, timeout: float | None) -> Work[None]:
        return self._first.barrier(timeout)

    def agree(self, operation: str, digest: int, timeout: float | None) -> Work[None]:
        return self._first.agree(operation, digest, timeout)

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]:
        return self._for(tensor).broadcast(tensor, root, timeout)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]:
        return self._for(tensor).all_reduce(tensor, op, timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        return self._for(tensors[0]).all_reduce_coalesced(tensors, op, timeout)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None) -> Work[None]:
        return self._for(tensor).reduce(tensor, root, op, timeout)

    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]:
        return self._for(tensor).all_gather(outputs, tensor, timeout)

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        return self._for(tensors[0]).all_gather_coalesced(outputs, tensors, timeout)

    def all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float | None) -> Work[None]:
        return self._for(tensor).all_gather_into(output, tensor, timeout)

    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        return self._for(tensor).gather(tensor, outputs, root, timeout)

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        return self._for(output).scatter(output, inputs, root, timeout)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        return self._for(output).reduce_scatter(output, inputs, op, timeout)

    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        return self._for(output).reduce_scatter_from(output, tensor, op, timeout)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        return self._for(inputs[0]).all_to_all(outputs, inputs, timeout)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]:
        backend = self._for(tensor)
        return backend.all_to_all_single(output, tensor, output_splits, input_splits, timeout)

    def broadcast_new(
        self, tensor: Tensor | None, root: int, timeout: float | None
    ) -> Work[Tensor]:
        return self._first.broadcast_new(tensor, root, timeout)

    def all_gather_new(self, tensor: Tensor, timeout: float | None) -> Work[list[Tensor]]:
        return self._first.all_gather_new(tensor, timeout)

    def broadcast_object(
        self,
        name: str,
        obj: Any,
        finish: Callable[[Any], T],
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        return self._first.broadcast_object(name, obj, finish, root, pickle, timeout)

    def all_gather_object(
        self, objects: list[Any], obj: Any, pickle: bool, timeout: float | None
    ) -> Work[None]:
        return self._first.all_gather_object(objects, obj, pickle, timeout)

    def gather_object(
        self, obj: Any, objects: list[Any] | None, root: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        return self._first.gather_object(obj, objects, root, pickle, timeout)

    def scatter_object(
        self,
        output: list[Any],
        inputs: Sequence[Any] | None,
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[None]:
        return self._first.scatter_object(output, inputs, root, pickle, timeout)
