"""The collectives over messages, each by the algorithm that a table of choices names.

An `Operations`; `collectives.operations` says what each does.
"""

from __future__ import annotations

from aiodist.backends.operations import Blocks, Run
from aiodist.collectives import operations
from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction import Scratch
from aiodist.collectives.select import Choice, Rules, select
from aiodist.tensors import Reduction


class Chosen:
    """Chooses by ``rules``, which are the same on all ranks, where there is something to choose.

    Ranks do not know of each other's blocks in a gather, scatter or all_to_all: one algorithm fits.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def _choice(self, operation: str, channel: Channel, nbytes: int) -> Choice:
        return select(operation, channel.size, nbytes, rules=self._rules)

    def barrier(self, channel: Channel, /) -> Run:
        return operations.barrier(channel)

    def broadcast(self, channel: Channel, root: int, data: memoryview, /) -> Run:
        choice = self._choice("broadcast", channel, len(data))
        return operations.broadcast(channel, root, data, choice)

    def reduce(
        self, channel: Channel, root: int, data: memoryview, op: Reduction, scratch: Scratch, /
    ) -> Run:
        choice = self._choice("reduce", channel, len(data))
        return operations.reduce(channel, root, data, op, scratch, choice)

    def all_reduce(
        self, channel: Channel, data: memoryview, op: Reduction, scratch: Scratch, /
    ) -> Run:
        choice = self._choice("all_reduce", channel, len(data))
        return operations.all_reduce(channel, data, op, scratch, choice)

    def all_gather(self, channel: Channel, blocks: Blocks, scratch: Scratch, /) -> Run:
        choice = self._choice("all_gather", channel, sum(map(len, blocks)))
        return operations.all_gather(channel, blocks, scratch, choice)

    def gather(
        self,
        channel: Channel,
        root: int,
        data: memoryview,
        blocks: Blocks | None,
        scratch: Scratch,
        /,
    ) -> Run:
        return operations.gather(channel, root, data, blocks, scratch)

    def scatter(
        self,
        channel: Channel,
        root: int,
        blocks: Blocks | None,
        out: memoryview,
        scratch: Scratch,
        /,
    ) -> Run:
        return operations.scatter(channel, root, blocks, out, scratch)

    def reduce_scatter(
        self,
        channel: Channel,
        blocks: Blocks,
        out: memoryview,
        op: Reduction,
        scratch: Scratch,
        /,
    ) -> Run:
        choice = self._choice("reduce_scatter", channel, sum(map(len, blocks)))
        return operations.reduce_scatter(channel, blocks, out, op, scratch, choice)

    def all_to_all(
        self, channel: Channel, inputs: Blocks, outputs: Blocks, scratch: Scratch, /
    ) -> Run:
        return operations.all_to_all(channel, inputs, outputs, scratch)
