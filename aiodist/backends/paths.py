"""Collectives through shared memory where the members share some, else as messages."""

from __future__ import annotations

from aiodist.backends.chosen import Chosen
from aiodist.backends.operations import Blocks, Run
from aiodist.collectives import hosts, shared
from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction import Scratch
from aiodist.collectives.spread import Hosts
from aiodist.groups.board import LineBoard
from aiodist.groups.lines import board_of
from aiodist.groups.placing import places_of
from aiodist.tensors import Reduction
from aiodist.tensors import scratch as scratch_memory


class Paths(Chosen):
    """The `Operations` of our own engine. A line that has a board goes there.

    Ranks on several hosts, some together, exchange inside their hosts first.
    """

    def _spread(self, channel: Channel) -> Hosts | None:
        places = places_of(channel)
        if places is None:
            return None
        return Hosts(channel, places, board_of(channel), scratch_memory, self._rules)

    def _board(self, channel: Channel) -> LineBoard | None:
        """The memory that all ranks of the operation share."""
        return board_of(channel) if places_of(channel) is None else None

    def barrier(self, channel: Channel, /) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.barrier(spread)
        board = self._board(channel)
        return super().barrier(channel) if board is None else shared.barrier(board)

    def broadcast(self, channel: Channel, root: int, data: memoryview, /) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.broadcast(spread, root, data)
        board = self._board(channel)
        if board is None:
            return super().broadcast(channel, root, data)
        return shared.broadcast(board, root, data)

    def reduce(
        self, channel: Channel, root: int, data: memoryview, op: Reduction, scratch: Scratch, /
    ) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.reduce(spread, root, data, op)
        board = self._board(channel)
        if board is None:
            return super().reduce(channel, root, data, op, scratch)
        return shared.reduce(board, root, data, op)

    def all_reduce(
        self, channel: Channel, data: memoryview, op: Reduction, scratch: Scratch, /
    ) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.all_reduce(spread, data, op)
        board = self._board(channel)
        if board is None:
            return super().all_reduce(channel, data, op, scratch)
        return shared.all_reduce(board, data, op)

    def all_gather(self, channel: Channel, blocks: Blocks, scratch: Scratch, /) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.all_gather(spread, blocks)
        board = self._board(channel)
        if board is None:
            return super().all_gather(channel, blocks, scratch)
        return shared.all_gather(board, blocks)

    def reduce_scatter(
        self,
        channel: Channel,
        blocks: Blocks,
        out: memoryview,
        op: Reduction,
        scratch: Scratch,
        /,
    ) -> Run:
        if (spread := self._spread(channel)) is not None:
            return hosts.reduce_scatter(spread, blocks, out, op)
        board = self._board(channel)
        if board is None:
            return super().reduce_scatter(channel, blocks, out, op, scratch)
        return shared.reduce_scatter(board, blocks, out, op)

    def gather(
        self,
        channel: Channel,
        root: int,
        data: memoryview,
        blocks: Blocks | None,
        scratch: Scratch,
        /,
    ) -> Run:
        board = self._board(channel)
        if board is None:
            return super().gather(channel, root, data, blocks, scratch)
        return shared.gather(board, root, data, blocks)

    def scatter(
        self,
        channel: Channel,
        root: int,
        blocks: Blocks | None,
        out: memoryview,
        scratch: Scratch,
        /,
    ) -> Run:
        board = self._board(channel)
        if board is None:
            return super().scatter(channel, root, blocks, out, scratch)
        return shared.scatter(board, root, blocks, out)

    def all_to_all(
        self, channel: Channel, inputs: Blocks, outputs: Blocks, scratch: Scratch, /
    ) -> Run:
        board = self._board(channel)
        if board is None:
            return super().all_to_all(channel, inputs, outputs, scratch)
        return shared.all_to_all(board, inputs, outputs)
