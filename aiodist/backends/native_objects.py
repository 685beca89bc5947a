"""Python objects over the native streams: encoded once, sent as bytes of unknown length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.backends.calls import Barrier, Operations
from aiodist.backends.letters import Letters
from aiodist.backends.offers import decline, is_announcement
from aiodist.backends.sends import Sends
from aiodist.backends.small import Small
from aiodist.backends.ways import Ways
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.broadcast_binomial import broadcast_new
from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_linear import gather_new
from aiodist.collectives.scatter_linear import scatter_new
from aiodist.collectives.tables import Tables
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import CollectiveBackend
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.mesh.matching import Recv
from aiodist.tensors import DType, Reduction, reduction, scratch
from aiodist.tensors.codec import TensorExtension
from aiodist.types import ReduceOp
from aiodist.wire.frames import Key
from aiodist.wire.objects import ObjectCodec

OBJECTS = b"\xffobjects"
"""Metadata of a point-to-point message of objects; no tensor's description starts like it."""


class NativeObjects(CollectiveBackend):
    """The operations on objects, and those on nothing at all."""

    def __init__(
        self, group: ProcessGroup, run: Operations | None = None, tables: Tables | None = None
    ) -> None:
        """``run``: who moves the tensors' bytes in collectives; None for the engine's own.

        ``tables``: what that chooses by, the same on all ranks; None for the world's.
        """
        tables = tables or group.world.tables
        self._group = group
        self._run = run or Ways(tables)
        self._shares = run is None
        self._small = Small(group, self._shares, tables.shared, self._reduction)
        self._codec = ObjectCodec([TensorExtension()])
        self._sends = Sends(group)
        self._letters = Letters(group)

    def _reduction(self, op: ReduceOp, dtype: DType) -> Reduction:
        """``op`` on elements of ``dtype`` over the group's ranks, for `Operations` to run."""
        return reduction(op, dtype, self._group.n_ranks)

    def close(self) -> None:
        self._small.forget()
        self._letters.forget()

    # -- nothing

    def barrier(self, timeout: float | None) -> Work[None]:
        call = self._small.barrier
        return self._small.at_once(call, None, timeout) or self._group.collective(
            call.fingerprint,
            lambda channel: self._run(channel, Barrier()),
            timeout,
            shares=self._shares,
        )

    def agree(self, operation: str, digest: int, timeout: float | None) -> Work[None]:
        # Our own algorithm wherever: its messages carry the digest, and compare it.
        fingerprint = Fingerprint(operation, count=digest)
        return self._group.collective(fingerprint, barrier_dissemination, timeout)

    # -- point to point

    def send_object(
        self, objects: Sequence[Any], dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        data = self._dump(list(objects), pickle)
        return self._sends.send(data, OBJECTS, dst, tag, timeout)

    def recv_object(
        self, objects: list[Any], src: int | None, tag: int, pickle: bool, timeout: float | None
    ) -> Work[int]:
        arrived: list[memoryview] = []

        def allocate(meta: bytes, length: int) -> memoryview:
            arrived[:] = [scratch(length)]
            return arrived[0]

        def check(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
            if meta == OBJECTS:
                return None
            if is_announcement(meta):
                return decline(self._group, src, meta)
            return InvalidUsageError(
                f"rank {src} sent a tensor; receive it with recv. The message is dropped"
            )

        def make(key: Key, source: int) -> Recv:
            return Recv(key, source, None, OBJECTS, check, allocate)

        def finish(source: int) -> int:
            self._fill(objects, arrived[0], pickle)
            return source

        return self._group.recv(make, finish, src, tag, timeout)

    # -- collectives

    def broadcast_object(
        self, objects: list[Any], root: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        is_root = self._group.own_rank == root
        data = self._dump(objects, pickle) if is_root else None

        async def body(channel: Channel) -> None:
            arrived = await broadcast_new(channel, root, data)
            if not is_root:
                self._fill(objects, arrived, pickle)

        fingerprint = Fingerprint("broadcast_object_list", root=root)
        return self._group.collective(fingerprint, body, timeout)

    def all_gather_object(
        self, objects: list[Any], obj: Any, pickle: bool, timeout: float | None
    ) -> Work[None]:
        data = self._dump(obj, pickle)

        async def body(channel: Channel) -> None:
            arrived = await all_gather_new(channel, data)
            objects[:] = [self._load(part, pickle) for part in arrived]

        return self._group.collective(Fingerprint("all_gather_object"), body, timeout)

    def gather_object(
        self, obj: Any, objects: list[Any] | None, root: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        data = self._dump(obj, pickle)

        async def body(channel: Channel) -> None:
            arrived = await gather_new(channel, root, data)
            if objects is not None and arrived is not None:
                objects[:] = [self._load(part, pickle) for part in arrived]

        fingerprint = Fingerprint("gather_object", root=root)
        return self._group.collective(fingerprint, body, timeout)

    def scatter_object(
        self,
        output: list[Any],
        inputs: Sequence[Any] | None,
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[None]:
        parts = None if inputs is None else [self._dump(item, pickle) for item in inputs]

        async def body(channel: Channel) -> None:
            arrived = await scatter_new(channel, root, parts)
            output[0] = self._load(arrived, pickle)

        fingerprint = Fingerprint("scatter_object_list", root=root)
        return self._group.collective(fingerprint, body, timeout)

    # -- bytes

    def _dump(self, obj: Any, pickle: bool) -> memoryview:
        return memoryview(self._codec.dumps(obj, allow_pickle=pickle))

    def _load(self, data: memoryview, pickle: bool) -> Any:
        return self._codec.loads(data, allow_pickle=pickle)

    def _fill(self, objects: list[Any], data: memoryview, pickle: bool) -> None:
        arrived = self._load(data, pickle)
        if len(arrived) != len(objects):
            raise InvalidUsageError(
                f"{len(arrived)} objects arrived for a list of {len(objects)}; the lists must "
                "have one length on all ranks"
            )
        objects[:] = arrived
