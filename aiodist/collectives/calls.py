"""The collectives on bytes: the arguments of each, and how it runs by each implementation.

`operations` says what each does over messages. Its guarantees hold for all: inputs are only read,
outputs are filled completely, `AllReduce` works in place, as does `Reduce` on the root, and
`AllGather` finds this rank's own block in place. What has no implementation of its own over hosts
runs flat, as if there were no hosts; so do "columns" where hosts have different numbers of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aiodist.collectives import operations
from aiodist.collectives.all_gather_hosts import all_gather_columns, all_gather_leaders
from aiodist.collectives.all_gather_shared import AllGatherSlots, all_gather_chunks
from aiodist.collectives.all_reduce_hosts import all_reduce_leaders, all_reduce_stripes
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.collectives.all_reduce_stripes import reduce_stripes as reduce_chunks
from aiodist.collectives.all_to_all_hosts import all_to_all_direct
from aiodist.collectives.all_to_all_shared import all_to_all_shared
from aiodist.collectives.barrier_hosts import barrier_hosts
from aiodist.collectives.barrier_slots import barrier_slots
from aiodist.collectives.broadcast_hosts import (
    broadcast_chain,
    broadcast_leaders,
    broadcast_stripes,
)
from aiodist.collectives.broadcast_shared import BroadcastSlots, broadcast_chunks, read_from
from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_shared import GatherLeaf, GatherRoot, ScatterLeaf, ScatterRoot
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.reduce_hosts import reduce_leaders, reduce_stripes
from aiodist.collectives.reduce_scatter_hosts import reduce_scatter_columns, reduce_scatter_leaders
from aiodist.collectives.reduce_scatter_shared import ReduceScatterSlots, reduce_scatter_chunks
from aiodist.collectives.reduce_slots import ReduceSlots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.select import HOSTS_RULES, SHARED_RULES, Choice, Rules, select
from aiodist.collectives.shm_choice import all_reduce_chunks, choose_shared
from aiodist.collectives.shm_exchange import InChunks, ShmContext
from aiodist.collectives.views import BlocksView, DataView

Run = Coroutine[Any, Any, None]
Blocks = Sequence[memoryview]


class Call(ABC):
    """One collective of one rank."""

    __slots__ = ()

    operation: ClassVar[str]

    @property
    def nbytes(self) -> int | None:
        """Return the length by which the algorithm is chosen; None: ranks only know their own blocks."""
        return None

    @abstractmethod
    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        """Run over messages. ``choice``: of an algorithm; None for the default."""

    @abstractmethod
    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        """Run in memory that all ranks share. ``rules``: by which the algorithm is chosen."""

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run | None:
        """Run inside each host first. Returns None if that gains nothing.

        ``rules``: by which the algorithm over hosts is chosen.
        """
        return None

    def _choose_over_hosts(self, hosts: MultiHostContext, rules: Rules) -> Choice:
        assert self.nbytes is not None
        return hosts.topology.select(self.operation, self.nbytes, rules)

    def _flat(self, hosts: MultiHostContext) -> Run:
        """Run as if there were no hosts."""
        assert self.nbytes is not None
        choice = select(self.operation, hosts.channel.size, self.nbytes, rules=hosts.rules)
        return self.by_messages(hosts.channel, hosts.scratch, choice)


@dataclass(slots=True)
class Barrier(Call):
    """Return when all ranks have entered."""

    operation = "barrier"

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.barrier(channel, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        return shm.run(barrier_slots(shm.rank, shm.size), None)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        return barrier_hosts(hosts)


@dataclass(slots=True)
class Broadcast(Call):
    """Fill ``data`` on every rank with what ``root`` has in it."""

    operation = "broadcast"
    root: int
    data: memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.broadcast(channel, self.root, self.data, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, nbytes, root = shm.rank, shm.size, self.nbytes, self.root
        if choose_shared("broadcast", shm, nbytes, rules) == "slots":
            return shm.run(BroadcastSlots(rank, size, nbytes, root), DataView(self.data))
        reads = read_from(rank, root, 0)
        steps = broadcast_chunks
        return shm.run(
            InChunks(rank, size, lambda at, data: steps(at, root, data), reads), self.data
        )

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        name, piece = self._choose_over_hosts(hosts, rules)
        if name == "leaders":
            return broadcast_leaders(hosts, self.root, self.data)
        if name == "chain":
            return broadcast_chain(hosts, self.root, self.data, piece)
        return broadcast_stripes(hosts, self.root, self.data, piece)


@dataclass(slots=True)
class Reduce(Call):
    """Reduce ``data`` over all ranks into ``root``'s."""

    operation = "reduce"
    root: int
    data: memoryview
    op: Reduction

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.reduce(channel, self.root, self.data, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, nbytes, root, op = shm.rank, shm.size, self.nbytes, self.root, self.op
        if choose_shared("reduce", shm, nbytes, rules) == "slots":
            return shm.run(ReduceSlots(rank, size, nbytes, root, op), DataView(self.data))
        steps = reduce_chunks
        return shm.run(InChunks(rank, size, lambda at, data: steps(at, root, data, op)), self.data)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        name, piece = self._choose_over_hosts(hosts, rules)
        if name == "leaders":
            return reduce_leaders(hosts, self.root, self.data, self.op)
        return reduce_stripes(hosts, self.root, self.data, self.op, piece)


@dataclass(slots=True)
class AllReduce(Call):
    """Reduce ``data`` over all ranks, in place."""

    operation = "all_reduce"
    data: memoryview
    op: Reduction

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.all_reduce(channel, self.data, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, nbytes, op = shm.rank, shm.size, self.nbytes, self.op
        if choose_shared("all_reduce", shm, nbytes, rules) == "slots":
            return shm.run(AllReduceSlots(rank, size, nbytes, op), DataView(self.data))
        steps = all_reduce_chunks
        return shm.run(InChunks(rank, size, lambda at, data: steps(at, data, op, rules)), self.data)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        name, piece = self._choose_over_hosts(hosts, rules)
        if name == "leaders":
            return all_reduce_leaders(hosts, self.data, self.op)
        return all_reduce_stripes(hosts, self.data, self.op, piece)


@dataclass(slots=True)
class AllGather(Call):
    """Fill every ``blocks[r]`` with rank r's block."""

    operation = "all_gather"
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.blocks))

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.all_gather(channel, self.blocks, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, lengths = shm.rank, shm.size, [len(block) for block in self.blocks]
        if choose_shared("all_gather", shm, sum(lengths), rules, max(lengths)) == "slots":
            given = DataView(self.blocks[rank]), BlocksView(self.blocks)
            return shm.run(AllGatherSlots(rank, size, lengths), given)
        return shm.run(InChunks(rank, size, all_gather_chunks), self.blocks)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        name, piece = self._choose_over_hosts(hosts, rules)
        if name == "leaders":
            return all_gather_leaders(hosts, self.blocks)
        if hosts.topology.is_even:
            return all_gather_columns(hosts, self.blocks, piece)
        return self._flat(hosts)


@dataclass(slots=True)
class ReduceScatter(Call):
    """Reduce ``blocks[rank]`` over all ranks into ``out``."""

    operation = "reduce_scatter"
    blocks: Blocks
    out: memoryview
    op: Reduction

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.blocks))

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.reduce_scatter(channel, self.blocks, self.out, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, blocks, out, op = shm.rank, shm.size, self.blocks, self.out, self.op
        lengths = [len(block) for block in blocks]
        if choose_shared("reduce_scatter", shm, sum(lengths), rules) == "slots":
            given = BlocksView(blocks), DataView(out)
            return shm.run(ReduceScatterSlots(rank, size, lengths, op), given)
        steps = reduce_scatter_chunks
        return shm.run(InChunks(rank, size, lambda at, blocks: steps(at, blocks, out, op)), blocks)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        name, piece = self._choose_over_hosts(hosts, rules)
        if name == "leaders":
            return reduce_scatter_leaders(hosts, self.blocks, self.out, self.op)
        if hosts.topology.is_even:
            return reduce_scatter_columns(hosts, self.blocks, self.out, self.op, piece)
        return self._flat(hosts)


@dataclass(slots=True)
class Gather(Call):
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""

    operation = "gather"
    root: int
    data: memoryview
    blocks: Blocks | None

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.gather(channel, self.root, self.data, self.blocks, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size, root, data = shm.rank, shm.size, self.root, self.data
        if rank != root:
            return shm.run(GatherLeaf(rank, size, root, len(data), shm.slot_bytes), DataView(data))
        assert self.blocks is not None
        exchange = GatherRoot(rank, size, [len(block) for block in self.blocks])
        return shm.run(exchange, (DataView(data), BlocksView(self.blocks)))


@dataclass(slots=True)
class Scatter(Call):
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""

    operation = "scatter"
    root: int
    blocks: Blocks | None
    out: memoryview

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.scatter(channel, self.root, self.blocks, self.out, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        rank, size = shm.rank, shm.size
        if rank != self.root:
            return shm.run(ScatterLeaf(rank, size, self.root), DataView(self.out))
        assert self.blocks is not None
        exchange = ScatterRoot(rank, size, [len(block) for block in self.blocks], shm.slot_bytes)
        return shm.run(exchange, (BlocksView(self.blocks), DataView(self.out)))


@dataclass(slots=True)
class AllToAll(Call):
    """Fill ``outputs[r]`` with what rank r has for this one in its ``inputs``."""

    operation = "all_to_all"
    inputs: Blocks
    outputs: Blocks

    def by_messages(self, channel: Channel, scratch: Scratch, choice: Choice | None = None) -> Run:
        return operations.all_to_all(channel, self.inputs, self.outputs, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules = SHARED_RULES) -> Run:
        return all_to_all_shared(shm, self.inputs, self.outputs)

    def over_hosts(self, hosts: MultiHostContext, rules: Rules = HOSTS_RULES) -> Run:
        return all_to_all_direct(hosts, self.inputs, self.outputs)
