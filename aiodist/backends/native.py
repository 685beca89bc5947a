"""The backend "aiodist", also reached as "gloo": every operation over aiodist's own streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiodist.backends.buffers import (
    are_staged,
    check_dtype,
    check_kept,
    check_own,
    check_times,
    digest_of_counts,
    to_read,
    to_write,
)
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
from aiodist.backends.gradual_copy import (
    copy_gradually,
    gradually,
    in_parts,
    load_gradually,
    through_host,
    write_back_gradually,
)
from aiodist.backends.native_messages import NativeMessages
from aiodist.backends.sizes import split_bytes
from aiodist.collectives.channel import Channel
from aiodist.collectives.views import BlocksView, DataView
from aiodist.groups.backend import Tensor
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.work import Work
from aiodist.tensors import (
    Buffer,
    Reduction,
    buffer_of,
    scratch,
)
from aiodist.types import ReduceOp


class NativeBackend(NativeMessages):
    """Operations on CPU tensors and arrays; non-contiguous ones travel through a staged copy."""

    name = "aiodist"

    # -- one to all, all to one

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]:
        if ended := self._plans.run_cached("broadcast", tensor, root, timeout):
            return self._group.over(ended)
        is_root = self._group.own_rank == root
        buffer = buffer_of(tensor, "tensor", writable=not is_root, load=False)
        small = self._plans.broadcast(buffer, root)
        if not buffer.is_staged and (
            work := self._plans.at_once(small, DataView(buffer.view), timeout, buffer)
        ):
            return work

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
                await load_gradually(self._group, buffer)
            await self._run(channel, Broadcast(root, buffer.view))
            if not is_root:
                await write_back_gradually(self._group, buffer)

        if buffer.staging is not None:
            return in_parts(self._group, small.fingerprint, buffer, body, timeout, self._shares)
        return self._group.collective(small.fingerprint, body, timeout, shares=self._shares)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None) -> Work[None]:
        if ended := self._plans.run_cached("reduce", tensor, (root, id(op.kind)), timeout):
            return self._group.over(ended)
        is_root = self._group.own_rank == root
        buffer = buffer_of(tensor, "tensor", writable=is_root, load=False)
        small = self._plans.reduce(buffer, op, root)
        if not buffer.is_staged and (
            work := self._plans.at_once(small, DataView(buffer.view), timeout, buffer)
        ):
            return work
        reduce = small.reduce

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, buffer)
            data = buffer.view
            if reduce.needs_prepare:
                if not is_root:  # only the root's tensor changes
                    data = scratch(buffer.nbytes)
                    await copy_gradually(self._group, data, buffer.view)
                await gradually(self._group, reduce.prepare, data, reduce.itemsize)
            await self._run(channel, Reduce(root, data, reduce))
            if is_root:
                if reduce.needs_finish:
                    await gradually(self._group, reduce.finish, data, reduce.itemsize)
                await write_back_gradually(self._group, buffer)

        return self._group.collective(small.fingerprint, body, timeout, shares=self._shares)

    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)
        places = to_write(outputs or (), "gather_list", buffer)

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, buffer)
            blocks = [place.view for place in places]
            await self._run(channel, Gather(root, buffer.view, blocks or None))
            await write_back_gradually(self._group, *places)

        if places:
            check_own(places[self._group.own_rank], buffer, "gather_list")
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
        sources = to_read(inputs or (), "scatter_list", buffer)

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, *sources)
            blocks = [source.view for source in sources]
            await self._run(channel, Scatter(root, blocks or None, buffer.view))
            await write_back_gradually(self._group, buffer)

        if sources:
            check_own(sources[self._group.own_rank], buffer, "scatter_list")
        return self._group.collective(
            Fingerprint("scatter", buffer.dtype, root=root, shape=buffer.shape),
            body,
            timeout,
            shares=self._shares,
        )

    # -- all to all ranks

    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]:
        if ended := self._plans.run_cached("all_reduce", tensor, id(op.kind), timeout):
            return self._group.over(ended)
        buffer = buffer_of(tensor, "tensor", writable=True, load=False)
        small = self._plans.all_reduce(buffer, op)
        fingerprint, reduce = small.fingerprint, small.reduce
        if not buffer.is_staged:
            return self._plans.at_once(
                small, DataView(buffer.view), timeout, buffer
            ) or self._all_reduce(fingerprint, buffer.view, reduce, None, None, timeout)

        if buffer.staging is not None:

            async def parts(channel: Channel) -> None:
                await through_host(
                    self._group,
                    buffer,
                    lambda part: self._reduce_part(channel, part, reduce),
                    load=True,
                    store=True,
                )

            return in_parts(self._group, fingerprint, buffer, parts, timeout, self._shares)

        async def stage() -> None:
            await load_gradually(self._group, buffer)

        async def hand_over() -> None:
            await write_back_gradually(self._group, buffer)

        return self._all_reduce(fingerprint, buffer.view, reduce, stage, hand_over, timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        buffers = to_write(tensors, "tensors")
        digest = digest_of_counts(buffers)
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
            await gradually(self._group, reduce.prepare, data, reduce.itemsize)
        await self._run(channel, AllReduce(data, reduce))
        if reduce.needs_finish:
            await gradually(self._group, reduce.finish, data, reduce.itemsize)

    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=False, load=False)
        places = to_write(outputs, "tensor_list", buffer)
        check_own(places[self._group.own_rank], buffer, "tensor_list")
        counts = [place.count for place in places]
        return self._all_gather(buffer, places, [p.view for p in places], counts, timeout)

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        buffers = to_read(tensors, "input_tensor_list")
        places = [
            to_write(row, f"output_tensor_lists[{number}]", buffers[0])
            for number, row in enumerate(outputs)
        ]
        rank = self._group.own_rank
        for place, buffer in zip(places[rank], buffers, strict=True):
            check_own(place, buffer, f"output_tensor_lists[{rank}]")

        async def body(channel: Channel) -> None:
            blocks = [scratch(sum(place.nbytes for place in row)) for row in places]
            await self._pack(buffers, blocks[rank])
            await self._run(channel, AllGather(blocks))
            for block, row in zip(blocks, places, strict=True):
                await self._unpack(block, row)

        digest = digest_of_counts([place for row in places for place in row])
        fingerprint = Fingerprint("all_gather_coalesced", buffers[0].dtype, count=digest)
        return self._group.collective(fingerprint, body, timeout, shares=self._shares)

    def all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float | None) -> Work[None]:
        if ended := self._plans.run_cached_between("all_gather", output, tensor, None, timeout):
            return self._group.over(ended)
        buffer = buffer_of(tensor, "input_tensor", writable=False, load=False)
        place = buffer_of(output, "output_tensor", writable=True, load=False)
        check_times(place, "output_tensor", buffer, "input_tensor", self._group.n_ranks)
        blocks = self._blocks(place, buffer.nbytes)
        counts = [buffer.count] * len(blocks)
        self._plans.keep_pair(self._plans.all_gather(buffer, counts), place, buffer, (True, False))
        return self._all_gather(buffer, [place], blocks, counts, timeout)

    def _all_gather(
        self,
        buffer: Buffer,
        places: Sequence[Buffer],
        blocks: Sequence[memoryview],
        counts: Sequence[int],
        timeout: float | None,
    ) -> Work[None]:
        """``blocks`` are the ranks' parts of ``places``, ``counts`` their elements."""
        small = self._plans.all_gather(buffer, counts)
        if not are_staged(buffer, *places) and (
            work := self._plans.at_once(
                small, (DataView(buffer.view), BlocksView(blocks)), timeout, buffer, *places
            )
        ):
            return work

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, buffer)
            await copy_gradually(self._group, blocks[self._group.own_rank], buffer.view)
            await self._run(channel, AllGather(blocks))
            await write_back_gradually(self._group, *places)

        return self._group.collective(small.fingerprint, body, timeout, shares=self._shares)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        place = buffer_of(output, "output", writable=True, load=False)
        sources = to_read(inputs, "input_list", place)
        check_own(sources[self._group.own_rank], place, "input_list")
        return self._reduce_scatter(place, sources, [s.view for s in sources], op, timeout)

    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]:
        variant = id(op.kind)
        if ended := self._plans.run_cached_between(
            "reduce_scatter", output, tensor, variant, timeout
        ):
            return self._group.over(ended)
        place = buffer_of(output, "output", writable=True, load=False)
        source = buffer_of(tensor, "input", writable=False, load=False)
        check_times(source, "input", place, "output", self._group.n_ranks)
        blocks = self._blocks(source, place.nbytes)
        small = self._plans.reduce_scatter(place, [place.count] * len(blocks), op)
        self._plans.keep_pair(small, place, source, (False, True), variant)
        return self._reduce_scatter(place, [source], blocks, op, timeout)

    def _reduce_scatter(
        self,
        place: Buffer,
        inputs: Sequence[Buffer],
        blocks: Sequence[memoryview],
        op: ReduceOp,
        timeout: float | None,
    ) -> Work[None]:
        counts = [len(block) // place.dtype.itemsize for block in blocks]
        small = self._plans.reduce_scatter(place, counts, op)
        if not are_staged(place, *inputs) and (
            work := self._plans.at_once(
                small, (BlocksView(blocks), DataView(place.view)), timeout, place, *inputs
            )
        ):
            return work
        reduce = small.reduce

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, *inputs)
            sources = blocks
            if reduce.needs_prepare:  # inputs stay as they are
                sources = [scratch(len(block)) for block in blocks]
                for copy, block in zip(sources, blocks, strict=True):
                    await copy_gradually(self._group, copy, block)
                    await gradually(self._group, reduce.prepare, copy, reduce.itemsize)
            await self._run(channel, ReduceScatter(sources, place.view, reduce))
            if reduce.needs_finish:
                await gradually(self._group, reduce.finish, place.view, reduce.itemsize)
            await write_back_gradually(self._group, place)

        return self._group.collective(small.fingerprint, body, timeout, shares=self._shares)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]:
        first = buffer_of(inputs[0], "input_tensor_list[0]", writable=False, load=False)
        sources = to_read(inputs, "input_tensor_list", first)
        places = to_write(outputs, "output_tensor_list", first)
        rank = self._group.own_rank
        check_own(places[rank], sources[rank], "output_tensor_list")

        views = [source.view for source in sources], [place.view for place in places]
        return self._all_to_all(sources, places, *views, None, timeout)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]:
        is_even = output_splits is None and input_splits is None
        if is_even and (ended := self._plans.run_cached_between("all_to_all", output, tensor)):
            return self._group.over(ended)
        source = buffer_of(tensor, "input", writable=False, load=False)
        place = buffer_of(output, "output", writable=True, load=False)
        check_dtype(place, "output", source)
        size, rank = self._group.n_ranks, self._group.own_rank
        inputs = split_bytes(source, "input", input_splits, size)
        outputs = split_bytes(place, "output", output_splits, size)
        check_kept(rank, len(inputs[rank]), len(outputs[rank]))
        if is_even:
            small = self._plans.all_to_all(source.dtype, source.shape, inputs)
            self._plans.keep_pair(small, place, source, (True, True))
        return self._all_to_all([source], [place], inputs, outputs, source.shape, timeout)

    def _all_to_all(
        self,
        sources: Sequence[Buffer],
        places: Sequence[Buffer],
        inputs: Sequence[memoryview],
        outputs: Sequence[memoryview],
        shape: tuple[int, ...] | None,
        timeout: float | None,
    ) -> Work[None]:
        """``inputs`` and ``outputs`` are the ranks' parts of the sources and of the places.

        ``shape``: of the source, where there is one.
        """
        small = self._plans.all_to_all(sources[0].dtype, shape, inputs)
        if not are_staged(*sources, *places) and (
            work := self._plans.at_once(
                small, (BlocksView(inputs), BlocksView(outputs)), timeout, *sources, *places
            )
        ):
            return work

        async def body(channel: Channel) -> None:
            await load_gradually(self._group, *sources)
            await self._run(channel, AllToAll(inputs, outputs))
            await write_back_gradually(self._group, *places)

        return self._group.collective(small.fingerprint, body, timeout, shares=self._shares)

    async def _pack(self, buffers: Sequence[Buffer], data: memoryview) -> None:
        """Fill ``data`` with the buffers' bytes, one after the other."""
        start = 0
        for buffer in buffers:
            await load_gradually(self._group, buffer)
            await copy_gradually(self._group, data[start : start + buffer.nbytes], buffer.view)
            start += buffer.nbytes

    async def _unpack(self, data: memoryview, buffers: Sequence[Buffer]) -> None:
        start = 0
        for buffer in buffers:
            await copy_gradually(self._group, buffer.view, data[start : start + buffer.nbytes])
            await write_back_gradually(self._group, buffer)
            start += buffer.nbytes

    def _blocks(self, buffer: Buffer, nbytes: int) -> list[memoryview]:
        return [buffer.view[i * nbytes : (i + 1) * nbytes] for i in range(self._group.n_ranks)]
