"""The backend "aiodist", also reached as "gloo": every operation over aiodist's own streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiodist.backends.calls import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from aiodist.backends.native_messages import NativeMessages
from aiodist.backends.sizes import digest_of_lengths, split_bytes, unequal
from aiodist.backends.turns import (
    copy_in_turns,
    in_turns,
    load_in_turns,
    through_host,
    write_back_in_turns,
)
from aiodist.collectives.channel import Channel
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import Tensor
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.work import Work
from aiodist.tensors import (
    Buffer,
    DType,
    Reduction,
    buffer_of,
    reduction,
    scratch,
)
from aiodist.types import ReduceOp


class NativeBackend(NativeMessages):
    """Operations on CPU tensors and arrays; non-contiguous ones travel through a staged copy."""

    name = "aiodist"

    def _reduction(self, op: ReduceOp, dtype: DType) -> Reduction:
        """``op`` on elements of ``dtype`` over the group's ranks, for `Operations` to run."""
        return reduction(op, dtype, self._group.n_ranks)

    # -- one to all, all to one

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        buffer = buffer_of(tensor, "tensor", writable=not is_root, load=False)

        async def body(channel: Channel) -> None:
            if buffer.staging is not None:
                await through_host(
                    self._group,
                    buffer,
                    lambda part: self._run(channel, Broadcast(root, part)),
                    load=is_root,
                    store=not is_root,
                )
                return
            if is_root:
                await load_in_turns(self._group, buffer)
            await self._run(channel, Broadcast(root, buffer.view))
            if not is_root:
                await write_back_in_turns(self._group, buffer)

        fingerprint = Fingerprint("broadcast", buffer.dtype, None, root, buffer.count, buffer.shape)
        # Shared memory is laid out for one run of an algorithm, and each part is one.
        shares = self._shares and buffer.staging is None
        return self._group.collective(fingerprint, body, timeout, shares=shares)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None) -> Work[None]:
        is_root = self._group.own_rank == root
        buffer = buffer_of(tensor, "tensor", writable=is_root, load=False)
        reduce = self._reduction(op, buffer.dtype)

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, buffer)
            data = buffer.view
            if reduce.needs_prepare:
                if not is_root:  # only the root's tensor changes
                    data = scratch(buffer.nbytes)
                    await copy_in_turns(self._group, data, buffer.view)
                await in_turns(self._group, reduce.prepare, data, reduce.itemsize)
            await self._run(channel, Reduce(root, data, reduce))
            if is_root:
                if reduce.needs_finish:
                    await in_turns(self._group, reduce.finish, data, reduce.itemsize)
                await write_back_in_turns(self._group, buffer)

        fingerprint = Fingerprint("reduce", buffer.dtype, op, root, buffer.count, buffer.shape)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)
        places = _outputs(outputs or (), "gather_list", buffer)

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, buffer)
            blocks = [place.view for place in places]
            await self._run(channel, Gather(root, buffer.view, blocks or None))
            await write_back_in_turns(self._group, *places)

        if places:
            _check_own(places[self._group.own_rank], buffer, "gather_list")
        return self._group.collective(
            Fingerprint("gather", buffer.dtype, root=root, shape=buffer.shape),
            body,
            timeout,
            shares=self._shares,
        )

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        buffer = buffer_of(output, "tensor", writable=True, load=False)
        sources = _inputs(inputs or (), "scatter_list", buffer)

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, *sources)
            blocks = [source.view for source in sources]
            await self._run(channel, Scatter(root, blocks or None, buffer.view))
            await write_back_in_turns(self._group, buffer)

        if sources:
            _check_own(sources[self._group.own_rank], buffer, "scatter_list")
        return self._group.collective(
            Fingerprint("scatter", buffer.dtype, root=root, shape=buffer.shape),
            body,
            timeout,
            shares=self._shares,
        )

    # -- all to all ranks

    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=True, load=False)
        call = self._small.call_of(buffer, op)
        fingerprint, reduce = call.fingerprint, call.reduce
        if not buffer.is_staged:
            work = self._small.all_reduce(call, buffer.view)
            if work is not None:
                return work
            return self._all_reduce(fingerprint, buffer.view, reduce, None, None, timeout)

        if buffer.staging is not None:

            async def parts(channel: Channel) -> None:
                await through_host(
                    self._group,
                    buffer,
                    lambda part: self._reduce_part(channel, part, reduce),
                    load=True,
                    store=True,
                )

            return self._group.collective(fingerprint, parts, timeout)

        async def stage() -> None:
            await load_in_turns(self._group, buffer)

        async def hand_over() -> None:
            await write_back_in_turns(self._group, buffer)

        return self._all_reduce(fingerprint, buffer.view, reduce, stage, hand_over, timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        buffers = [
            buffer_of(tensor, f"tensors[{i}]", writable=True, load=False)
            for i, tensor in enumerate(tensors)
        ]
        _check_one_dtype(buffers, "tensors")
        digest = digest_of_lengths(buffers)
        fingerprint = Fingerprint("all_reduce_coalesced", buffers[0].dtype, op, count=digest)
        data = scratch(sum(buffer.nbytes for buffer in buffers))

        async def stage() -> None:
            await self._pack(buffers, data)

        async def hand_over() -> None:
            await self._unpack(data, buffers)

        reduce = self._reduction(op, buffers[0].dtype)
        return self._all_reduce(fingerprint, data, reduce, stage, hand_over, timeout)

    def _all_reduce(
        self,
        fingerprint: Fingerprint,
        data: memoryview,
        reduce: Reduction,
        stage: Callable[[], Awaitable[None]] | None,
        hand_over: Callable[[], Awaitable[None]] | None,
        timeout: float | None,
    ) -> Work[None]:
        """``stage()`` fills ``data`` with this rank's input, where it is not there yet.

        ``hand_over()`` brings the reduced ``data`` to where the caller looks for it.
        """

        async def body(channel: Channel) -> None:
            if stage is not None:
                await stage()
            await self._reduce_part(channel, data, reduce)
            if hand_over is not None:
                await hand_over()

        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    async def _reduce_part(self, channel: Channel, data: memoryview, reduce: Reduction) -> None:
        if reduce.needs_prepare:
            await in_turns(self._group, reduce.prepare, data, reduce.itemsize)
        await self._run(channel, AllReduce(data, reduce))
        if reduce.needs_finish:
            await in_turns(self._group, reduce.finish, data, reduce.itemsize)

    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)
        places = _outputs(outputs, "tensor_list", buffer)
        own = places[self._group.own_rank]
        _check_own(own, buffer, "tensor_list")
        counts = [place.count for place in places]

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, buffer)
            await copy_in_turns(self._group, own.view, buffer.view)
            await self._run(channel, AllGather([place.view for place in places]))
            await write_back_in_turns(self._group, *places)

        agreed = unequal(counts), sum(counts), buffer.shape
        fingerprint = Fingerprint("all_gather", buffer.dtype, None, *agreed)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        buffers = [
            buffer_of(tensor, f"input_tensor_list[{i}]", writable=False, load=False)
            for i, tensor in enumerate(tensors)
        ]
        _check_one_dtype(buffers, "input_tensor_list")
        places = [
            _outputs(row, f"output_tensor_lists[{number}]", buffers[0])
            for number, row in enumerate(outputs)
        ]
        rank = self._group.own_rank
        for place, buffer in zip(places[rank], buffers, strict=True):
            _check_own(place, buffer, f"output_tensor_lists[{rank}]")

        async def body(channel: Channel) -> None:
            blocks = [scratch(sum(place.nbytes for place in row)) for row in places]
            await self._pack(buffers, blocks[rank])
            await self._run(channel, AllGather(blocks))
            for block, row in zip(blocks, places, strict=True):
                await self._unpack(block, row)

        digest = digest_of_lengths([place for row in places for place in row])
        fingerprint = Fingerprint("all_gather_coalesced", buffers[0].dtype, count=digest)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float | None) -> Work[None]:
        buffer = buffer_of(tensor, "input_tensor", writable=False, load=False)
        place = buffer_of(output, "output_tensor", writable=True, load=False)
        self._check_multiple(place, "output_tensor", buffer, "input_tensor")

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, buffer)
            blocks = self._blocks(place, buffer.nbytes)
            await copy_in_turns(self._group, blocks[self._group.own_rank], buffer.view)
            await self._run(channel, AllGather(blocks))
            await write_back_in_turns(self._group, place)

        fingerprint = Fingerprint("all_gather", buffer.dtype, count=place.count, shape=buffer.shape)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = buffer_of(output, "output", writable=True, load=False)
        sources = _inputs(inputs, "input_list", place)
        _check_own(sources[self._group.own_rank], place, "input_list")
        return self._reduce_scatter(place, sources, [s.view for s in sources], op, timeout)

    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = buffer_of(output, "output", writable=True, load=False)
        source = buffer_of(tensor, "input", writable=False, load=False)
        self._check_multiple(source, "input", place, "output")
        blocks = self._blocks(source, place.nbytes)
        return self._reduce_scatter(place, [source], blocks, op, timeout)

    def _reduce_scatter(
        self,
        place: Buffer,
        inputs: Sequence[Buffer],
        blocks: Sequence[memoryview],
        op: ReduceOp,
        timeout: float | None,
    ) -> Work[None]:
        reduce = self._reduction(op, place.dtype)

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, *inputs)
            sources = blocks
            if reduce.needs_prepare:  # inputs stay as they are
                sources = [scratch(len(block)) for block in blocks]
                for copy, block in zip(sources, blocks, strict=True):
                    await copy_in_turns(self._group, copy, block)
                    await in_turns(self._group, reduce.prepare, copy, reduce.itemsize)
            await self._run(channel, ReduceScatter(sources, place.view, reduce))
            if reduce.needs_finish:
                await in_turns(self._group, reduce.finish, place.view, reduce.itemsize)
            await write_back_in_turns(self._group, place)

        counts = [len(block) // place.dtype.itemsize for block in blocks]
        agreed = unequal(counts), sum(counts), place.shape
        fingerprint = Fingerprint("reduce_scatter", place.dtype, op, *agreed)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        first = buffer_of(inputs[0], "input_tensor_list[0]", writable=False, load=False)
        sources = _inputs(inputs, "input_tensor_list", first)
        places = _outputs(outputs, "output_tensor_list", first)
        rank = self._group.own_rank
        _check_own(places[rank], sources[rank], "output_tensor_list")

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, *sources)
            views = [source.view for source in sources]
            await self._run(channel, AllToAll(views, [p.view for p in places]))
            await write_back_in_turns(self._group, *places)

        return self._group.collective(
            Fingerprint("all_to_all", first.dtype), body, timeout, shares=self._shares
        )

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]:
        source = buffer_of(tensor, "input", writable=False, load=False)
        place = buffer_of(output, "output", writable=True, load=False)
        _check_dtype(place, "output", source)
        size, rank = self._group.n_ranks, self._group.own_rank
        inputs = split_bytes(source, "input", input_splits, size)
        outputs = split_bytes(place, "output", output_splits, size)
        if len(inputs[rank]) != len(outputs[rank]):
            raise InvalidUsageError(
                f"what rank {rank} sends itself has {len(inputs[rank])} bytes, what it expects "
                f"from itself {len(outputs[rank])}: the splits do not fit together"
            )

        async def body(channel: Channel) -> None:
            await load_in_turns(self._group, source)
            await self._run(channel, AllToAll(inputs, outputs))
            await write_back_in_turns(self._group, place)

        return self._group.collective(
            Fingerprint("all_to_all", source.dtype, shape=source.shape),
            body,
            timeout,
            shares=self._shares,
        )

    async def _pack(self, buffers: Sequence[Buffer], data: memoryview) -> None:
        """Fill ``data`` with the buffers' bytes, one after the other."""
        start = 0
        for buffer in buffers:
            await load_in_turns(self._group, buffer)
            await copy_in_turns(self._group, data[start : start + buffer.nbytes], buffer.view)
            start += buffer.nbytes

    async def _unpack(self, data: memoryview, buffers: Sequence[Buffer]) -> None:
        start = 0
        for buffer in buffers:
            await copy_in_turns(self._group, buffer.view, data[start : start + buffer.nbytes])
            await write_back_in_turns(self._group, buffer)
            start += buffer.nbytes

    # -- checks

    def _blocks(self, buffer: Buffer, nbytes: int) -> list[memoryview]:
        return [buffer.view[i * nbytes : (i + 1) * nbytes] for i in range(self._group.n_ranks)]

    def _check_multiple(self, whole: Buffer, whole_name: str, part: Buffer, part_name: str) -> None:
        _check_dtype(whole, whole_name, part)
        size = self._group.n_ranks
        if whole.count != part.count * size:
            raise InvalidUsageError(
                f"{whole_name} has {whole.count} elements; it must have {size} (the group's size) "
                f"times the {part.count} of {part_name}"
            )


def _outputs(tensors: Sequence[Tensor], name: str, like: Buffer) -> list[Buffer]:
    return _buffers(tensors, name, like, writable=True)


def _inputs(tensors: Sequence[Tensor], name: str, like: Buffer) -> list[Buffer]:
    return _buffers(tensors, name, like, writable=False)


def _buffers(tensors: Sequence[Tensor], name: str, like: Buffer, *, writable: bool) -> list[Buffer]:
    buffers = [
        buffer_of(tensor, f"{name}[{i}]", writable=writable, load=False)
        for i, tensor in enumerate(tensors)
    ]
    for i, buffer in enumerate(buffers):
        _check_dtype(buffer, f"{name}[{i}]", like)
    return buffers


def _check_dtype(buffer: Buffer, name: str, like: Buffer) -> None:
    if buffer.dtype != like.dtype:
        raise InvalidUsageError(
            f"{name} is {buffer.dtype.name}, it must be {like.dtype.name} as the rest of the call"
        )


def _check_one_dtype(buffers: Sequence[Buffer], name: str) -> None:
    names = sorted({buffer.dtype.name for buffer in buffers})
    if len(names) > 1:
        raise InvalidUsageError(f"{name} must have one dtype, got {', '.join(names)}")


def _check_own(in_list: Buffer, own: Buffer, name: str) -> None:
    if in_list.count != own.count:
        raise InvalidUsageError(
            f"this rank's own entry of {name} has {in_list.count} elements, the tensor that goes "
            f"with it {own.count}"
        )
