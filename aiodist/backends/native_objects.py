"""Python objects over the native streams: encoded once, sent as bytes of unknown length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiodist.backends.algorithm_choice import Operations
from aiodist.backends.gradual_copy import copy_gradually, load_gradually, run_gradually
from aiodist.backends.native_streams import Streams
from aiodist.backends.object_messages import ObjectMessages, Packing, unheard
from aiodist.backends.sends import Sends
from aiodist.backends.tensor_opening import open_buffer
from aiodist.collectives.all_gather_ring import all_gather_new, all_gather_ring
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.broadcast_binomial import broadcast_new
from aiodist.collectives.calls import Broadcast
from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_linear import gather_new
from aiodist.collectives.scatter_linear import scatter_new
from aiodist.completion import T
from aiodist.groups.collective_backend import Start
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine, raising
from aiodist.groups.message import RecvObject, SendObject
from aiodist.groups.object_operation import (
    AllGatherObject,
    BroadcastObject,
    GatherObject,
    ScatterObject,
)
from aiodist.groups.operation import Agree, AllGatherNew, BroadcastNew, Opened, Tensor
from aiodist.groups.work import Work
from aiodist.tensors import Buffer, decode_meta, empty_like_message, encode_meta, scratch
from aiodist.tensors.codec import TensorExtension
from aiodist.wire.object_codec import Envelope, ObjectCodec, Packed, read_envelope
from aiodist.wire.registered_types import current_types

ObjectCollective = BroadcastObject[Any] | AllGatherObject | GatherObject | ScatterObject

_NO_TENSORS: Opened[Buffer] = Opened((), ())


class NativeObjects:
    """The operations on objects, agreements, and tensors of which only their senders know the shape."""

    def __init__(self, group: GroupEngine, run: Operations, sends: Sends) -> None:
        """``run``: moves the tensors' bytes in collectives. ``sends``: those of the group."""
        self._group = group
        self._run = run
        self._codec = ObjectCodec([TensorExtension()], current_types())
        self._messages = ObjectMessages(group, sends, self._codec)
        self.streams = Streams(group, self._messages)
        self.starts: Mapping[str, Start] = {
            Agree.kind: self._agree,
            BroadcastNew.kind: self._broadcast_new,
            AllGatherNew.kind: self._all_gather_new,
            BroadcastObject.kind: self._broadcast_object,
            AllGatherObject.kind: self._all_gather_object,
            GatherObject.kind: self._gather_object,
            ScatterObject.kind: self._scatter_object,
            SendObject.kind: self._messages.send,
            RecvObject.kind: self._messages.recv,
        }
        """By the kind of the operation."""

    def _agree(self, operation: Agree, timeout: float | None) -> Work[None]:
        # Always aiodist's own algorithm: its messages carry the digest, and compare it.
        fingerprint = operation.fingerprint(_NO_TENSORS)
        return self._group.collective(fingerprint, barrier_dissemination, timeout)

    # -- collectives

    def _broadcast_object(self, operation: BroadcastObject[T], timeout: float | None) -> Work[T]:
        obj, finish, root = operation.obj, operation.finish, operation.root
        given = [obj] if self._group.rank == root else []
        fingerprint, packings = self._packings(operation, given, timeout)

        async def body(channel: Channel) -> T:
            if packings:
                packed = await packings[0].rest(self._group)
                for data in (memoryview(packed.envelope), *packed.parts):
                    await broadcast_new(channel, root, data)
                return finish(obj)
            envelope = read_envelope(await broadcast_new(channel, root, None))
            parts = [await broadcast_new(channel, root, None) for _ in envelope.part_sizes]
            return finish(await self._load(envelope, parts, operation.pickle))

        return self._group.collective(fingerprint, body, timeout)

    def _all_gather_object(self, operation: AllGatherObject, timeout: float | None) -> Work[None]:
        fingerprint, (packing,) = self._packings(operation, [operation.obj], timeout)

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
            operation.objects[:] = await self._load_all(envelopes, parts, operation.pickle)

        return self._group.collective(fingerprint, body, timeout)

    def _gather_object(self, operation: GatherObject, timeout: float | None) -> Work[None]:
        objects, root = operation.objects, operation.root
        fingerprint, (packing,) = self._packings(operation, [operation.obj], timeout)

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
            objects[:] = await self._load_all(envelopes, parts, operation.pickle)

        return self._group.collective(fingerprint, body, timeout)

    def _scatter_object(self, operation: ScatterObject, timeout: float | None) -> Work[None]:
        inputs, root = operation.given, operation.root
        fingerprint, packings = self._packings(operation, inputs or (), timeout)

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
            operation.objects[0] = await self._load(envelope, parts, operation.pickle)

        return self._group.collective(fingerprint, body, timeout)

    # -- tensors of which only their senders know the shape

    def _broadcast_new(self, operation: BroadcastNew, timeout: float | None) -> Work[Tensor]:
        root, opened = operation.root, operation.open(open_buffer, self._group)
        buffer = opened.inputs[0] if opened.inputs else None

        async def body(channel: Channel) -> Tensor:
            meta = memoryview(encode_meta(buffer)) if buffer is not None else None
            described = await broadcast_new(channel, root, meta)
            if buffer is not None:
                await load_gradually(self._group, buffer)
                await self._run(channel, Broadcast(root, buffer.view))
                return operation.tensor
            made = empty_like_message(*decode_meta(bytes(described)))
            await self._run(channel, Broadcast(root, made.view))
            return made.owner

        return self._group.collective(operation.fingerprint(opened), body, timeout)

    def _all_gather_new(self, operation: AllGatherNew, timeout: float | None) -> Work[list[Tensor]]:
        opened = operation.open(open_buffer, self._group)
        (buffer,) = opened.inputs

        async def body(channel: Channel) -> list[Tensor]:
            described = await all_gather_new(channel, memoryview(encode_meta(buffer)))
            made = [empty_like_message(*decode_meta(bytes(each))) for each in described]
            await load_gradually(self._group, buffer)
            await copy_gradually(self._group, made[channel.rank].view, buffer.view)
            await all_gather_ring(channel, [each.view for each in made])
            return [each.owner for each in made]

        return self._group.collective(operation.fingerprint(opened), body, timeout)

    # -- bytes

    def _packings(
        self, operation: ObjectCollective, objects: Sequence[Any], timeout: float | None
    ) -> tuple[Fingerprint, list[Packing]]:
        """Begin to pack ``objects``. Return the fingerprint and what packs each of them.

        If one is refused, the collective fails on all ranks, which would wait for this one until
        their timeout. Raises the refusal.
        """
        fingerprint, pickle = operation.fingerprint(_NO_TENSORS), operation.pickle
        try:
            return fingerprint, [self._packing(each, pickle) for each in objects]
        except Exception as error:
            unheard(self._group.collective(fingerprint, partial(raising, error), timeout))
            raise

    def _packing(self, obj: Any, pickle: bool) -> Packing:
        first = self._codec.dump_at_once(obj, allow_pickle=pickle)
        return Packing(self._codec, obj, pickle, first)

    async def _own(self, packed: Packed) -> list[memoryview]:
        """Copy the parts of this rank's own object: what comes back is another one."""
        copies = [scratch(len(part)) for part in packed.parts]
        for target, source in zip(copies, packed.parts, strict=True):
            await copy_gradually(self._group, target, source)
        return copies

    async def _load(self, envelope: Envelope, parts: list[memoryview], pickle: bool) -> Any:
        steps = self._codec.load_steps(envelope, parts, allow_pickle=pickle)
        return await run_gradually(self._group.next_turn, steps)

    async def _load_all(
        self, envelopes: list[Envelope], parts: list[list[memoryview]], pickle: bool
    ) -> list[Any]:
        pairs = zip(envelopes, parts, strict=True)
        return [await self._load(envelope, memory, pickle) for envelope, memory in pairs]


_NOTHING = memoryview(b"")
