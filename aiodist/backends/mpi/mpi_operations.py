"""The collectives by MPI's own non-blocking ones, on the tensors' memory where it is one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from aiodist.backends.gradual_copy import copy_gradually
from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.library import Mpi
from aiodist.backends.mpi.mpi_agreement import MpiAgreement, sending
from aiodist.backends.mpi.poller import Request
from aiodist.backends.mpi.reductions import MpiReduction
from aiodist.backends.tensor_opening import parts_of
from aiodist.collectives import calls
from aiodist.collectives.calls import Blocks, Call, Run
from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.groups.group_engine import GroupEngine
from aiodist.tensors import scratch
from aiodist.tensors.memory_overlap import overlap
from aiodist.tensors.raw_memory import address_of


class MpiOperations:
    """A `backends.algorithm_choice.Operations` on one communicator.

    They run one after the other, once the communicator is there; see `agreement`. A reduction that
    MPI does not have runs by our own algorithms, over MPI's messages; all ranks decide that alike,
    by operation and dtype. Awaiting raises DistBackendError for what MPI reports. Cancelled, a
    collective goes on inside MPI: its memory stays MPI's.
    """

    def __init__(self, group: GroupEngine, gate: Gate, agreement: MpiAgreement) -> None:
        self._group = group
        self._gate = gate
        self._agreement = agreement
        self._runs: Mapping[type[Call], Callable[[Channel, Any], Run]] = {
            calls.Barrier: self._barrier,
            calls.Broadcast: self._broadcast,
            calls.Reduce: self._reduce,
            calls.AllReduce: self._all_reduce,
            calls.AllGather: self._all_gather,
            calls.Gather: self._gather,
            calls.Scatter: self._scatter,
            calls.ReduceScatter: self._reduce_scatter,
            calls.AllToAll: self._all_to_all,
        }

    def __call__(self, channel: Channel, call: Call, /) -> Run:
        return self._runs[type(call)](channel, call)

    async def _barrier(self, channel: Channel, call: calls.Barrier) -> None:
        await self._watch(self._gate.comm.Ibarrier(), 0)

    async def _broadcast(self, channel: Channel, call: calls.Broadcast) -> None:
        data = call.data
        request = self._gate.comm.Ibcast(self._bytes(data), call.root)
        await self._watch(request, len(data), data)

    async def _reduce(self, channel: Channel, call: calls.Reduce) -> None:
        root, data = call.root, call.data
        mine = self._in_mpi(call.op)
        if mine is None:
            await call.by_messages(channel, scratch)
            return
        mpi, comm = self._gate.mpi, self._gate.comm
        theirs, datatype = mine
        elements = [data, datatype]
        if channel.rank == root:
            request = comm.Ireduce(mpi.IN_PLACE, elements, theirs, root)
        else:
            request = comm.Ireduce(elements, None, theirs, root)
        await self._watch(request, len(data), data)

    async def _all_reduce(self, channel: Channel, call: calls.AllReduce) -> None:
        data = call.data
        mine = self._in_mpi(call.op)
        if mine is None:
            await call.by_messages(channel, scratch)
            return
        theirs, datatype = mine
        elements = [data, datatype]
        request = self._gate.comm.Iallreduce(self._gate.mpi.IN_PLACE, elements, theirs)
        await self._watch(request, len(data), data)

    async def _all_gather(self, channel: Channel, call: calls.AllGather) -> None:
        blocks = call.blocks
        await self._agreement.compare(channel, _lengths(blocks))
        whole = self._joined(blocks)
        rank = channel.rank
        target = scratch(_total(blocks)) if whole is None else whole
        if whole is None:
            await copy_gradually(self._group, _parts(target, blocks)[rank], blocks[rank])
        request = self._gate.comm.Iallgatherv(self._gate.mpi.IN_PLACE, self._cut(target, blocks))
        await self._watch(request, len(target), target, blocks)
        if whole is None:
            for number, part in enumerate(_parts(target, blocks)):
                if number != rank:
                    await copy_gradually(self._group, blocks[number], part)

    async def _gather(self, channel: Channel, call: calls.Gather) -> None:
        root, data, blocks = call.root, call.data, call.blocks
        rank = channel.rank
        balance = sending(rank, root, len(data))
        for number, block in enumerate(blocks or ()):
            balance -= sending(number, root, len(block))
        await self._agreement.compare(channel, balance=balance)
        if rank != root or blocks is None:
            request = self._gate.comm.Igatherv(self._bytes(data), None, root)
            await self._watch(request, len(data), data)
            return
        whole = self._joined(blocks)
        if whole is not None and overlap(whole, data):
            whole = None
        target = scratch(_total(blocks)) if whole is None else whole
        request = self._gate.comm.Igatherv(self._bytes(data), self._cut(target, blocks), root)
        await self._watch(request, len(target), data, target, blocks)
        if whole is None:
            await self._spread(target, blocks)

    async def _scatter(self, channel: Channel, call: calls.Scatter) -> None:
        root, blocks, out = call.root, call.blocks, call.out
        rank = channel.rank
        balance = -sending(root, rank, len(out))
        for number, block in enumerate(blocks or ()):
            balance += sending(root, number, len(block))
        await self._agreement.compare(channel, balance=balance)
        if rank != root or blocks is None:
            request = self._gate.comm.Iscatterv(None, self._bytes(out), root)
            await self._watch(request, len(out), out)
            return
        source = await self._one_piece(blocks, apart_from=out)
        request = self._gate.comm.Iscatterv(self._cut(source, blocks), self._bytes(out), root)
        await self._watch(request, len(source), source, blocks, out)

    async def _reduce_scatter(self, channel: Channel, call: calls.ReduceScatter) -> None:
        blocks, out, op = call.blocks, call.out, call.op
        await self._agreement.compare(channel, _lengths(blocks))
        mine = self._in_mpi(op)
        if mine is None:
            await call.by_messages(channel, scratch)
            return
        source = await self._one_piece(blocks, apart_from=out)
        counts = [len(block) // op.itemsize for block in blocks]
        theirs, datatype = mine
        given, target = [source, datatype], [out, datatype]
        comm = self._gate.comm
        if len(set(counts)) == 1:
            request = comm.Ireduce_scatter_block(given, target, theirs)
        else:
            request = comm.Ireduce_scatter(given, target, counts, theirs)
        await self._watch(request, len(source), source, blocks, out)

    async def _all_to_all(self, channel: Channel, call: calls.AllToAll) -> None:
        inputs, outputs = call.inputs, call.outputs
        rank, balance = channel.rank, 0
        for number, (block, place) in enumerate(zip(inputs, outputs, strict=True)):
            balance += sending(rank, number, len(block)) - sending(number, rank, len(place))
        await self._agreement.compare(channel, balance=balance)
        source = await self._one_piece(inputs)
        whole = self._joined(outputs)
        target = scratch(_total(outputs)) if whole is None else whole
        request = self._gate.comm.Ialltoallv(self._cut(source, inputs), self._cut(target, outputs))
        await self._watch(request, len(source) + len(target), source, target, inputs, outputs)
        if whole is None:
            await self._spread(target, outputs)

    def _in_mpi(self, op: Reduction) -> tuple[Mpi, Mpi] | None:
        return op.in_mpi(self._gate.mpi) if isinstance(op, MpiReduction) else None

    # -- requests

    def _watch(self, request: Mpi, nbytes: int, *memory: object) -> Request:
        """Let ``request`` be polled. It moves about ``nbytes``. ``memory``: all that it reads or writes."""
        return self._gate.poller.watch(request, memory, nbytes)

    def _bytes(self, data: memoryview) -> list[Mpi]:
        return [data, self._gate.mpi.BYTE]

    def _cut(self, whole: memoryview, blocks: Blocks) -> list[Mpi]:
        counts = _lengths(blocks)
        starts = [0, *accumulate(counts)][:-1]
        return [whole, (counts, starts), self._gate.mpi.BYTE]

    # -- memory

    def _joined(self, blocks: Blocks) -> memoryview | None:
        """Return all blocks as one piece of memory; None unless each begins where the one before it ends.

        It does not keep the blocks' memory alive: `_watch` does.
        """
        filled = [block for block in blocks if len(block)]
        if len(filled) < 2:
            return filled[0] if filled else None
        start = end = address_of(filled[0])
        for block in filled:
            if address_of(block) != end:
                return None
            end += len(block)
        readonly = any(block.readonly for block in filled)
        return memoryview(self._gate.mpi.buffer.fromaddress(start, end - start, readonly))

    async def _one_piece(self, blocks: Blocks, apart_from: memoryview | None = None) -> memoryview:
        """Return all blocks as one piece, or a copy of them: it does not overlap ``apart_from``."""
        whole = self._joined(blocks)
        if whole is not None and (apart_from is None or not overlap(whole, apart_from)):
            return whole
        copy = scratch(_total(blocks))
        for part, block in zip(_parts(copy, blocks), blocks, strict=True):
            await copy_gradually(self._group, part, block)
        return copy

    async def _spread(self, whole: memoryview, blocks: Blocks) -> None:
        for part, block in zip(_parts(whole, blocks), blocks, strict=True):
            await copy_gradually(self._group, block, part)


def _lengths(blocks: Blocks) -> list[int]:
    return [len(block) for block in blocks]


def _total(blocks: Blocks) -> int:
    return sum(map(len, blocks))


def _parts(whole: memoryview, blocks: Blocks) -> list[memoryview]:
    return parts_of(_lengths(blocks), whole)
