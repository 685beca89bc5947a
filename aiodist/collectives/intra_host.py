"""What the ranks of one host do among themselves within a collective of several hosts.

A collective over hosts has several stretches inside a host, one after the other: some before the
hosts exchange, some after. If the ranks of the host share memory, they use one `ShmContext` for all
stretches, and its steps are numbered through. Otherwise they use messages of the collective's own
channel. Ranks on other hosts see no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.collectives import operations
from aiodist.collectives.all_gather_shared import all_gather_chunks
from aiodist.collectives.all_reduce_slots import in_order
from aiodist.collectives.all_reduce_stripes import reduce_stripes
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_shared import broadcast_chunks
from aiodist.collectives.channel import Channel
from aiodist.collectives.pipeline import ReusedScratch
from aiodist.collectives.reduce_scatter_shared import reduce_scatter_chunks
from aiodist.collectives.reduction import Reduction, Scratch
from aiodist.collectives.schedule import Schedule, carry_out
from aiodist.collectives.select import RULES, Rules, select
from aiodist.collectives.shm_context import ShmContext
from aiodist.completion import Pending
from aiodist.copying import copy

Blocks = Sequence[memoryview]
_Stretch = Callable[[ShmContext], Schedule]


class IntraHost(Protocol):
    """The ranks of this rank's host. Arguments and promises are those of `operations`."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    async def barrier(self) -> None: ...

    async def broadcast(self, root: int, data: memoryview) -> None: ...

    async def reduce(self, root: int, data: memoryview, op: Reduction) -> None: ...

    async def all_gather(self, blocks: Blocks) -> None: ...

    async def gather(self, root: int, blocks: Blocks) -> None:
        """As all_gather, and only ``root``'s blocks are filled. All know all lengths."""
        ...

    async def reduce_scatter(self, blocks: Blocks, out: memoryview, op: Reduction) -> None: ...


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

    @property
    def _scratch(self) -> Scratch:
        """For the next stretch: the one before it has ended, and needs its memory no more."""
        self._memory.next_piece()
        return self._memory


class IntraHostShm:
    """Over a `ShmContext` of two ranks or more.

    A first stretch that reduces little data uses the slots, which an operation has once; all others
    use chunks. No rank reads a chunk of another before it has looked at that one's slot, which says
    what operation it is in.
    """

    def __init__(self, shm: ShmContext) -> None:
        self.rank = shm.rank
        self.size = shm.size
        self._shm = shm
        self._steps = 0
        self._begun = False  # this rank has published its slot
        self._known: set[int] = {shm.rank}  # whose slots have been looked at

    async def barrier(self) -> None:
        self._begin(range(self.size))
        await barrier_slots(self._shm)
        self._shm.begin_chunks()

    async def broadcast(self, root: int, data: memoryview) -> None:
        await self._look_at([root])
        await self._stretch(lambda later: broadcast_chunks(later, root, data))

    async def reduce(self, root: int, data: memoryview, op: Reduction) -> None:
        shm = self._shm
        if self._begun or len(data) > shm.slot_bytes:
            await self._look_at(range(self.size))
            await self._stretch(lambda later: reduce_stripes(later, root, data, op))
            return
        self._begin(range(self.size) if self.rank == root else ())
        await self._publish(memoryview(b"") if self.rank == root else data)
        if self.rank == root:
            # The first operands may overwrite the root's own, unless it is one of them.
            own = data if root < 2 else memoryview(data.tobytes())
            operands = [
                own if rank == root else await shm.slot_of(rank, len(data))
                for rank in range(self.size)
            ]
            for reduction in in_order(op, operands, root, data):
                reduction()
        shm.begin_chunks()

    async def all_gather(self, blocks: Blocks) -> None:
        await self._look_at(range(self.size))
        await self._stretch(lambda later: all_gather_chunks(later, blocks))

    async def gather(self, root: int, blocks: Blocks) -> None:
        await self._look_at(range(self.size) if self.rank == root else ())
        await self._stretch(lambda later: all_gather_chunks(later, blocks, (root,)))

    async def reduce_scatter(self, blocks: Blocks, out: memoryview, op: Reduction) -> None:
        await self._look_at(range(self.size))
        await self._stretch(lambda later: reduce_scatter_chunks(later, blocks, out, op))

    # -- inside

    def _begin(self, known: Sequence[int]) -> None:
        self._begun = True
        self._known.update(known)

    async def _publish(self, data: memoryview) -> None:
        own = await self._shm.slot(len(data))
        copy(own, data)
        self._shm.publish(len(data))

    async def _look_at(self, ranks: Sequence[int]) -> None:
        """See that these ranks are in this very operation; this one's slot is up afterwards."""
        if not self._begun:
            self._begin(())
            await self._publish(memoryview(b""))
            self._shm.begin_chunks()
        for rank in ranks:
            if rank not in self._known:
                self._known.add(rank)
                await self._shm.slot_of(rank)

    async def _stretch(self, run: _Stretch) -> None:
        later = _OffsetShmContext(self._shm, self._steps)
        await carry_out(later, run(later))
        self._steps += later.steps


class _OffsetShmContext:
    """A shared-memory context of which earlier stretches of the operation have used ``first`` steps."""

    def __init__(self, shm: ShmContext, first: int) -> None:
        self.rank = shm.rank
        self.size = shm.size
        self.slot_bytes = 0
        self.chunk_bytes = shm.chunk_bytes
        self.depth = shm.depth
        self.crowded = shm.crowded
        self.steps = 0
        """Of this stretch, that this rank has let go; all of them in the end."""
        self._shm = shm
        self._first = first
        self.slot = shm.slot
        self.publish = shm.publish
        self.slot_of = shm.slot_of
        self.expect = shm.expect
        self.turn = shm.turn

    async def enter(self) -> None:
        """They have met before."""

    def may_begin(self) -> bool:
        return False

    def has_begun(self) -> bool:
        return False

    async def wait_for_peers(self, peers: Sequence[int] | None = None) -> None:
        """As `enter`."""

    def begin_chunks(self) -> None:
        """As `enter`."""

    def free(self, step: int) -> Pending[None]:
        return self._shm.free(self._first + step)

    def chunk(self, rank: int, step: int) -> memoryview:
        return self._shm.chunk(rank, self._first + step)

    def post(self, step: int, phase: int = 0) -> None:
        self._shm.post(self._first + step, phase)

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None]:
        return self._shm.posted(rank, self._first + step, phase)

    def release(self, steps: int) -> None:
        self.steps = steps
        self._shm.release(self._first + steps)

    def release_all(self) -> None:
        raise RuntimeError("a stretch ends before its operation does: it cannot let go all steps")
