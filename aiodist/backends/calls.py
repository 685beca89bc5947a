"""The collectives on bytes: the arguments of each, and how it runs by each implementation.

`aiodist.collectives.operations` says what each does. Its guarantees hold for all: inputs are only
read, outputs are filled completely, `AllReduce` works in place, as does `Reduce` on the root, and
`AllGather` finds this rank's own block in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from aiodist.collectives import host_operations, operations, shm_operations
from aiodist.collectives.channel import Channel
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.select import Choice, Rules
from aiodist.collectives.shm_exchange import ShmContext
from aiodist.tensors import Reduction, scratch

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
    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        """Run over messages. ``choice``: of an algorithm; None for the default."""

    @abstractmethod
    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        """Run in memory that all ranks share. ``rules``: by which the algorithm is chosen."""

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run | None:
        """Run inside each host first. Returns None if that gains nothing.

        ``rules``: by which the algorithm over hosts is chosen.
        """
        return None


class Operations(Protocol):
    """Moves and reduces the bytes: aiodist's own algorithms, or another library's."""

    def __call__(self, channel: Channel, call: Call, /) -> Run: ...


@dataclass(slots=True)
class Barrier(Call):
    """Return when all ranks have entered."""

    operation = "barrier"

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.barrier(channel, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.barrier(shm)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.barrier(among)


@dataclass(slots=True)
class Broadcast(Call):
    """Fill ``data`` on every rank with what ``root`` has in it."""

    operation = "broadcast"
    root: int
    data: memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.broadcast(channel, self.root, self.data, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.broadcast(shm, self.root, self.data, rules)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.broadcast(among, self.root, self.data, rules)


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

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.reduce(channel, self.root, self.data, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.reduce(shm, self.root, self.data, self.op, rules)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.reduce(among, self.root, self.data, self.op, rules)


@dataclass(slots=True)
class AllReduce(Call):
    """Reduce ``data`` over all ranks, in place."""

    operation = "all_reduce"
    data: memoryview
    op: Reduction

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.all_reduce(channel, self.data, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.all_reduce(shm, self.data, self.op, rules)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.all_reduce(among, self.data, self.op, rules)


@dataclass(slots=True)
class AllGather(Call):
    """Fill every ``blocks[r]`` with rank r's block."""

    operation = "all_gather"
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.blocks))

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.all_gather(channel, self.blocks, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.all_gather(shm, self.blocks, rules)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.all_gather(among, self.blocks, rules)


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

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.reduce_scatter(channel, self.blocks, self.out, self.op, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.reduce_scatter(shm, self.blocks, self.out, self.op, rules)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.reduce_scatter(among, self.blocks, self.out, self.op, rules)


@dataclass(slots=True)
class Gather(Call):
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``."""

    operation = "gather"
    root: int
    data: memoryview
    blocks: Blocks | None

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.gather(channel, self.root, self.data, self.blocks, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.gather(shm, self.root, self.data, self.blocks)


@dataclass(slots=True)
class Scatter(Call):
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``."""

    operation = "scatter"
    root: int
    blocks: Blocks | None
    out: memoryview

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.scatter(channel, self.root, self.blocks, self.out, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.scatter(shm, self.root, self.blocks, self.out)


@dataclass(slots=True)
class AllToAll(Call):
    """Fill ``outputs[r]`` with what rank r has for this one in its ``inputs``."""

    operation = "all_to_all"
    inputs: Blocks
    outputs: Blocks

    def over_messages(self, channel: Channel, choice: Choice | None = None) -> Run:
        return operations.all_to_all(channel, self.inputs, self.outputs, scratch, choice)

    def in_memory(self, shm: ShmContext, rules: Rules) -> Run:
        return shm_operations.all_to_all(shm, self.inputs, self.outputs)

    def over_hosts(self, among: MultiHostContext, rules: Rules) -> Run:
        return host_operations.all_to_all(among, self.inputs, self.outputs)
