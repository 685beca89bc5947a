"""What there is to choose from, and a run of one choice on given memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any

from aiodist.collectives import operations
from aiodist.collectives.channel import Channel
from aiodist.collectives.select import Choice
from aiodist.simulate import algorithms_of
from aiodist.tensors import Reduction, scratch

ITEMSIZE = 4
"""Of float32, which is measured."""

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)

Run = Coroutine[Any, Any, None]
Body = Callable[[Channel], Run]


def candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks.

    A pipeline is in it once for each length of chunks that cuts the data differently.
    """
    found = []
    for algorithm in algorithms_of(operation):
        if not algorithm.is_for(ranks, nbytes):
            continue
        if not algorithm.has_chunks:
            found.append(Choice(algorithm.name))
            continue
        length = nbytes if algorithm.name == "chain" else nbytes // ranks
        found += [Choice(algorithm.name, chunk) for chunk in CHUNKS if chunk < length]
        found.append(Choice(algorithm.name, next((c for c in CHUNKS if c >= length), CHUNKS[-1])))
    return list(dict.fromkeys(found))


class Memory:
    """Room for one operation on ``nbytes`` on this rank of ``ranks``, and its runs."""

    def __init__(self, operation: str, rank: int, ranks: int, nbytes: int, add: Reduction) -> None:
        self.data = scratch(nbytes)
        self.data[:] = bytes(nbytes)
        self.add = add
        length = nbytes // ranks // ITEMSIZE * ITEMSIZE
        self.blocks = [self.data[i * length : (i + 1) * length] for i in range(ranks)]
        self.own = self.blocks[rank]
        self._build = _BODIES[operation]

    def body(self, choice: Choice) -> Body:
        """What a rank runs."""
        return lambda channel: self._build(self, channel, choice)


_BODIES: MappingProxyType[str, Callable[[Memory, Channel, Choice], Run]] = MappingProxyType(
    {
        "broadcast": lambda m, channel, choice: operations.broadcast(channel, 0, m.data, choice),
        "reduce": lambda m, channel, choice: operations.reduce(
            channel, 0, m.data, m.add, scratch, choice
        ),
        "all_reduce": lambda m, channel, choice: operations.all_reduce(
            channel, m.data, m.add, scratch, choice
        ),
        "all_gather": lambda m, channel, choice: operations.all_gather(
            channel, m.blocks, scratch, choice
        ),
        "reduce_scatter": lambda m, channel, choice: operations.reduce_scatter(
            channel, m.blocks, m.own, m.add, scratch, choice
        ),
    }
)
