"""What the ranks of one host do among themselves within a collective of several hosts.

A collective over hosts has several stretches inside a host, one after the other: some before the
hosts exchange, some after. If the ranks of the host share memory, they use one `ShmContext` for all
stretches, and its steps are numbered through. Otherwise they use messages of the collective's own
channel. Ranks on other hosts see no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from aiodist.collectives import operations
from aiodist.collectives.all_gather_shared import all_gather_chunks
from aiodist.collectives.all_reduce_stripes import reduce_stripes
from aiodist.collectives.all_to_all_shared import all_to_all_shared
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import PIECE_BYTES, BroadcastSlots, broadcast_chunks
from aiodist.collectives.channel import Channel
from aiodist.collectives.operations import Blocks, Run
from aiodist.collectives.pipeline import ReusedScratch
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks
from aiodist.collectives.reduce_slots import ReduceSlots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.schedule import Step
from aiodist.collectives.select import RULES, Rules, select
from aiodist.collectives.shm_exchange import Exchange, InChunks, ShmContext
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.views import DataView

T = TypeVar("T")


class IntraHost(Protocol):
    """The ranks of this rank's host. Arguments and promises are those of `operations`."""

    rank: int
    size: int

    def barrier(self) -> Run: ...

    def broadcast(self, root: int, data: memoryview) -> Run: ...

    def reduce(self, root: int, data: memoryview, op: Reduction) -> Run: ...

    def all_gather(self, blocks: Blocks) -> Run: ...

    def gather(self, root: int, blocks: Blocks) -> Run:
        """As all_gather, and only ``root``'s blocks are filled. All know all lengths."""

    def reduce_scatter(self, blocks: Blocks, out: memoryview, op: Reduction) -> Run: ...

    def all_to_all(self, inputs: Blocks, outputs: Blocks) -> Run:
        """The only stretch of its operation."""


class IntraHostMessages:
    """Over messages, by the algorithms that ``rules`` choose."""

    def __init__(self, channel: Channel, scratch: Scratch, rules: Rules = RULES) -> None:
        self.rank = channel.rank
        self.size = channel.size
        self._channel = channel
        self._memory = ReusedScratch(scratch)
        self._rules = rules

    async def barrier(self) -> None:
        await operations.barrier(self._channel)

    async def broadcast(self, root: int, data: memoryview) -> None:
        choice = select("broadcast", self.size, len(data), rules=self._rules)
        await operations.broadcast(self._channel, root, data, choice)

    async def reduce(self, root: int, data: memoryview, op: Reduction) -> None:
        choice = select("reduce", self.size, len(data), rules=self._rules)
        await operations.reduce(self._channel, root, data, op, self._scratch, choice)

    async def all_gather(self, blocks: Blocks) -> None:
        choice = select("all_gather", self.size, sum(map(len, blocks)), rules=self._rules)
        await operations.all_gather(self._channel, blocks, self._scratch, choice)

    async def gather(self, root: int, blocks: Blocks) -> None:
        own = blocks[self.rank]
        await operations.gather(self._channel, root, own, blocks, self._scratch)

    async def reduce_scatter(self, blocks: Blocks, out: memoryview, op: Reduction) -> None:
        choice = select("reduce_scatter", self.size, sum(map(len, blocks)), rules=self._rules)
        await operations.reduce_scatter(self._channel, blocks, out, op, self._scratch, choice)

    async def all_to_all(self, inputs: Blocks, outputs: Blocks) -> None:
        await operations.all_to_all(self._channel, inputs, outputs, self._scratch)

    @property
    def _scratch(self) -> Scratch:
        """For the next stretch: the one before it has ended, and needs its memory no more."""
        self._memory.next_piece()
        return self._memory


class IntraHostShm:
    """Over a `ShmContext` of two ranks or more.

    A first stretch that reduces or broadcasts little data uses the slots, which an operation has
    once; all others use chunks. No rank reads a chunk of another before it has looked at that one's
    slot, which says what operation it is in.
    """

    def __init__(self, shm: ShmContext) -> None:
        self.rank = shm.rank
        self.size = shm.size
        self._shm = shm
        self._begun = False  # a stretch has, which has taken the slots
        self._known: set[int] = {shm.rank}  # whose slots have been read

    def barrier(self) -> Run:
        return self._run(barrier_slots(self.rank, self.size), None)

    def broadcast(self, root: int, data: memoryview) -> Run:
        rank, size, nbytes = self.rank, self.size, len(data)
        # Of more than a piece, ranks that have a core each copy chunks at the same time.
        room = self._shm.slot_bytes if self._shm.oversubscribed else PIECE_BYTES
        if self._begun or nbytes > min(room, self._shm.slot_bytes):
            return self._in_chunks([root], lambda shm, _: broadcast_chunks(shm, root, data))
        exchange = BroadcastSlots(rank, size, nbytes, root)
        return self._run(exchange, DataView(data))

    def reduce(self, root: int, data: memoryview, op: Reduction) -> Run:
        rank, size, nbytes = self.rank, self.size, len(data)
        if self._begun or nbytes > self._shm.slot_bytes:
            return self._in_chunks(range(size), lambda shm, _: reduce_stripes(shm, root, data, op))
        exchange = ReduceSlots(rank, size, nbytes, root, op)
        return self._run(exchange, DataView(data))

    def all_gather(self, blocks: Blocks) -> Run:
        return self._in_chunks(range(self.size), lambda shm, _: all_gather_chunks(shm, blocks))

    def gather(self, root: int, blocks: Blocks) -> Run:
        sources = range(self.size) if self.rank == root else ()
        return self._in_chunks(sources, lambda shm, _: all_gather_chunks(shm, blocks, (root,)))

    def reduce_scatter(self, blocks: Blocks, out: memoryview, op: Reduction) -> Run:
        return self._in_chunks(
            range(self.size), lambda shm, _: reduce_scatter_chunks(shm, blocks, out, op)
        )

    def all_to_all(self, inputs: Blocks, outputs: Blocks) -> Run:
        return all_to_all_shared(self._shm, inputs, outputs)

    # -- inside

    def _in_chunks(
        self, sources: Sequence[int], steps: Callable[[ShmLayout, None], Iterator[Step]]
    ) -> Run:
        """Take ``steps``, which read chunks of ``sources``."""
        reads = [(rank, -1) for rank in sources if rank not in self._known]
        return self._run(InChunks(self.rank, self.size, steps, reads), None)

    def _run(self, exchange: Exchange[T], given: T) -> Run:
        self._begun = True
        for rank, _ in exchange.reads:
            self._known.add(rank)
        return self._shm.run(exchange, given)
