"""Python objects over the native streams: encoded once, sent as bytes of unknown length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiodist.backends.algorithm_choice import AlgorithmChoice
from aiodist.backends.calls import Barrier, Broadcast, Operations
from aiodist.backends.gradual_copy import copy_gradually, load_gradually, run_gradually
from aiodist.backends.message_plans import MessagePlans
from aiodist.backends.object_messages import ObjectMessages, Packing
from aiodist.backends.object_streams import Stream, Streams
from aiodist.backends.plan_cache import PlanCache
from aiodist.backends.sends import Sends
from aiodist.collectives.all_gather_ring import all_gather_new, all_gather_ring
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.broadcast_binomial import broadcast_new
from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_linear import gather_new
from aiodist.collectives.rule_tables import Tables
from aiodist.collectives.scatter_linear import scatter_new
from aiodist.completion import T
from aiodist.groups.backend import CollectiveBackend, Tensor
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.tensors import (
    DType,
    Reduction,
    buffer_of,
    decode_meta,
    empty_like_message,
    encode_meta,
    reduction,
    scratch,
)
from aiodist.tensors.codec import TensorExtension
from aiodist.types import ReduceOp
from aiodist.wire.frames import OBJECT
from aiodist.wire.objects import Envelope, ObjectCodec, Packed, read_envelope
from aiodist.wire.registered_types import current_types


class NativeObjects(CollectiveBackend):
    """The operations on objects, and those without data."""

    def __init__(
        self, group: GroupEngine, run: Operations | None = None, tables: Tables | None = None
    ) -> None:
        """``run``: moves the tensors' bytes in collectives; None for the engine's own algorithms.

        ``tables``: the rules by which it chooses, equal on all ranks; None for the world's.
        """
        tables = tables or group.world.tables
        self._group = group
        self._run = run or AlgorithmChoice(tables)
        self._shares = run is None
        self._plans = PlanCache(group, self._shares, tables.shared, self._reduction)
        self._codec = ObjectCodec([TensorExtension()], current_types())
        self._sends = Sends(group)
        self._objects = ObjectMessages(group, self._sends, self._codec)
        self._streams = Streams(group, self._objects, self._codec)
        self._message_plans = MessagePlans(group)

    def _reduction(self, op: ReduceOp, dtype: DType) -> Reduction:
        """``op`` on elements of ``dtype`` over the group's ranks, for `Operations` to run."""
        return reduction(op, dtype, self._group.n_ranks)

    def close(self) -> None:
        self._plans.forget()
        self._message_plans.forget()

    # -- nothing

    def barrier(self, timeout: float | None) -> Work[None]:
        call = self._plans.barrier
        return self._plans.at_once(call, None, timeout) or self._group.collective(
            call.fingerprint,
            lambda channel: self._run(channel, Barrier()),
            timeout,
            shares=self._shares,
        )

    def agree(self, operation: str, digest: int, timeout: float | None) -> Work[None]:
        # Always aiodist's own algorithm: its messages carry the digest, and compare it.
        fingerprint = Fingerprint(operation, count=digest)
        return self._group.collective(fingerprint, barrier_dissemination, timeout)

    # -- point to point

    def send_object(
        self, obj: Any, dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        return self._objects.send(obj, dst, tag, OBJECT, pickle, timeout)

    def recv_object(
        self,
        finish: Callable[[Any, int], T],
        src: int | None,
        tag: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        return self._objects.recv(finish, src, tag, OBJECT, pickle, timeout)

    def open_stream(
        self, peer: int, tag: int, window: int, max_bytes: int, allow_pickle: bool
    ) -> Stream:
        return self._streams.open(peer, tag, window, max_bytes, allow_pickle)

    # -- collectives

    def broadcast_object(
        self,
        name: str,
        obj: Any,
        finish: Callable[[Any], T],
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        is_root = self._group.own_rank == root
        fingerprint = Fingerprint(name, root=root)
        packings = self._packings([obj] if is_root else [], pickle, fingerprint, timeout)

        async def body(channel: Channel) -> T:
            if packings:
                packed = await packings[0].rest(self._group)
                for data in (memoryview(packed.envelope), *packed.parts):
                    await broadcast_new(channel, root, data)
                return finish(obj)
            envelope = read_envelope(await broadcast_new(channel, root, None))
            parts = [await broadcast_new(channel, root, None) for _ in envelope.part_sizes]
            return finish(await self._load(envelope, parts, pickle))

        return self._group.collective(fingerprint, body, timeout)

    def all_gather_object(
        self, objects: list[Any], obj: Any, pickle: bool, timeout: float | None
    ) -> Work[None]:
        fingerprint = Fingerprint("all_gather_object")
        (packing,) = self._packings([obj], pickle, fingerprint, timeout)

        async def body(channel: Channel) -> None:
            packed = await packing.rest(self._group)
            data = await all_gather_new(channel, memoryview(packed.envelope))
            envelopes = [read_envelope(each) for each in data]
            parts: list[list[memoryview]] = [[] for _ in envelopes]
            for number in range(max(len(envelope.part_sizes) for envelope in envelopes)):
                mine = packed.parts[number] if number < len(packed.parts) else _NOTHING
                for rank, part in enumerate(await all_gather_new(channel, mine)):
                    if number < len(envelopes[rank].part_sizes):
                        parts[rank].append(part)
            parts[channel.rank] = await self._own(packed)
            objects[:] = await self._load_all(envelopes, parts, pickle)

        return self._group.collective(fingerprint, body, timeout)

    def gather_object(
        self, obj: Any, objects: list[Any] | None, root: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        fingerprint = Fingerprint("gather_object", root=root)
        (packing,) = self._packings([obj], pickle, fingerprint, timeout)

        async def body(channel: Channel) -> None:
            packed = await packing.rest(self._group)
            arrived = await gather_new(channel, root, memoryview(packed.envelope))
            if objects is None or arrived is None:
                for sent in [channel.send(root, part) for part in packed.parts]:
                    await sent
                return
            envelopes = [read_envelope(each) for each in arrived]
            coming = [
                [channel.recv_new(rank) for _ in envelope.part_sizes] if rank != root else []
                for rank, envelope in enumerate(envelopes)
            ]
            parts = [[await part for part in row] for row in coming]
            parts[root] = await self._own(packed)
            objects[:] = await self._load_all(envelopes, parts, pickle)

        return self._group.collective(fingerprint, body, timeout)

    def scatter_object(
        self,
        output: list[Any],
        inputs: Sequence[Any] | None,
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[None]:
        fingerprint = Fingerprint("scatter_object_list", root=root)
        packings = self._packings(inputs or (), pickle, fingerprint, timeout)

        async def body(channel: Channel) -> None:
            if inputs is None:
                envelope = read_envelope(await scatter_new(channel, root, None))
                parts = [await channel.recv_new(root) for _ in envelope.part_sizes]
            else:
                packed = [await packing.rest(self._group) for packing in packings]
                own = packed[root]
                await scatter_new(channel, root, [memoryview(each.envelope) for each in packed])
                sends = [
                    channel.send(rank, part)
                    for rank, each in enumerate(packed)
                    if rank != root
                    for part in each.parts
                ]
                envelope = read_envelope(memoryview(own.envelope))
                parts = await self._own(own)
                for sent in sends:
                    await sent
            output[0] = await self._load(envelope, parts, pickle)

        return self._group.collective(fingerprint, body, timeout)

    # -- tensors of which only their senders know the shape

    def broadcast_new(
        self, tensor: Tensor | None, root: int, timeout: float | None
    ) -> Work[Tensor]:
        buffer = None
        if self._group.own_rank == root:
            buffer = buffer_of(tensor, "tensor", writable=False, load=False)

        async def body(channel: Channel) -> Tensor:
            meta = memoryview(encode_meta(buffer)) if buffer is not None else None
            described = await broadcast_new(channel, root, meta)
            if buffer is not None:
                await load_gradually(self._group, buffer)
                await self._run(channel, Broadcast(root, buffer.view))
                return buffer.owner
            made = empty_like_message(*decode_meta(bytes(described)))
            await self._run(channel, Broadcast(root, made.view))
            return made.owner

        return self._group.collective(Fingerprint("broadcast_new", root=root), body, timeout)

    def all_gather_new(self, tensor: Tensor, timeout: float | None) -> Work[list[Tensor]]:
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)

        async def body(channel: Channel) -> list[Tensor]:
            described = await all_gather_new(channel, memoryview(encode_meta(buffer)))
            made = [empty_like_message(*decode_meta(bytes(each))) for each in described]
            await load_gradually(self._group, buffer)
            await copy_gradually(self._group, made[channel.rank].view, buffer.view)
            await all_gather_ring(channel, [each.view for each in made])
            return [each.owner for each in made]

        return self._group.collective(Fingerprint("all_gather_new"), body, timeout)

    # -- bytes

    def _packings(
        self,
        objects: Sequence[Any],
        pickle: bool,
        fingerprint: Fingerprint,
        timeout: float | None,
    ) -> list[Packing]:
        """Begin to pack ``objects``. If one is refused, the collective fails on all ranks.

        Otherwise the other ranks would wait for this one until their timeout. Raises the refusal.
        """
        try:
            return [Packing(self._codec, each, pickle) for each in objects]
        except Exception as error:
            failed = self._group.collective(fingerprint, partial(_refuse, error), timeout)
            failed.exception()  # it is raised here
            raise

    async def _own(self, packed: Packed) -> list[memoryview]:
        """Copy the parts of this rank's own object: what comes back is another one."""
        copies = [scratch(len(part)) for part in packed.parts]
        for target, source in zip(copies, packed.parts, strict=True):
            await copy_gradually(self._group, target, source)
        return copies

    async def _load(self, envelope: Envelope, parts: list[memoryview], pickle: bool) -> Any:
        steps = self._codec.load_steps(envelope, parts, allow_pickle=pickle)
        return await run_gradually(self._group, steps)

    async def _load_all(
        self, envelopes: list[Envelope], parts: list[list[memoryview]], pickle: bool
    ) -> list[Any]:
        pairs = zip(envelopes, parts, strict=True)
        return [await self._load(envelope, memory, pickle) for envelope, memory in pairs]


_NOTHING = memoryview(b"")


async def _refuse(error: Exception, channel: Channel) -> None:
    raise error
