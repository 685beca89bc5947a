"""Every collective by its name: looks up the algorithm and returns its coroutine, not yet started.

All take an optional ``choice``, which overrides the table and must be equal on all ranks. Blocks
are lists with one memoryview a rank. Inputs are only read and outputs filled completely, with two
exceptions: ``all_reduce`` (and ``reduce`` on the root) work in place, and ``all_gather`` finds this
rank's own block in place. Memory is writable, contiguous, one-dimensional, of format "B". Inputs and
outputs share none, but what a rank has for itself may be exactly where it gets that.

Awaiting raises what the channel raises; outputs then hold anything. A ValueError says that a choice
names an algorithm the operation does not have.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from aiodist.collectives.all_gather_bruck import all_gather_bruck
from aiodist.collectives.all_gather_doubling import all_gather_doubling
from aiodist.collectives.all_gather_ring import all_gather_ring
from aiodist.collectives.all_reduce_doubling import all_reduce_doubling
from aiodist.collectives.all_reduce_halving_doubling import all_reduce_halving_doubling
from aiodist.collectives.all_reduce_ring import all_reduce_ring
from aiodist.collectives.all_to_all_bruck import all_to_all_bruck
from aiodist.collectives.all_to_all_pairwise import all_to_all_pairwise
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.broadcast_binomial import broadcast_binomial
from aiodist.collectives.broadcast_chain import broadcast_chain
from aiodist.collectives.broadcast_linear import broadcast_linear
from aiodist.collectives.broadcast_scatter_ring import broadcast_scatter_ring
from aiodist.collectives.channel import Channel
from aiodist.collectives.gather_binomial import gather_binomial
from aiodist.collectives.gather_linear import gather_linear
from aiodist.collectives.reduce_binomial import reduce_binomial
from aiodist.collectives.reduce_chain import reduce_chain
from aiodist.collectives.reduce_scatter_gather import reduce_scatter_gather
from aiodist.collectives.reduce_scatter_halving import reduce_scatter_halving
from aiodist.collectives.reduce_scatter_pairwise import reduce_scatter_pairwise
from aiodist.collectives.reduce_scatter_ring import reduce_scatter_ring
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.collectives.scatter_binomial import scatter_binomial
from aiodist.collectives.scatter_linear import scatter_linear
from aiodist.collectives.select import UNEVEN, Choice, select

Run = Coroutine[Any, Any, None]
Blocks = Sequence[memoryview]


def barrier(channel: Channel, choice: Choice | None = None) -> Run:
    """Return when all ranks have entered."""
    name = (choice or select("barrier", channel.size, 0)).algorithm
    if name == "dissemination":
        return barrier_dissemination(channel)
    raise _unknown("barrier", name)


def broadcast(channel: Channel, root: int, data: memoryview, choice: Choice | None = None) -> Run:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    name, chunk = choice or select("broadcast", channel.size, len(data))
    if name == "linear":
        return broadcast_linear(channel, root, data)
    if name == "binomial":
        return broadcast_binomial(channel, root, data)
    if name == "chain":
        return broadcast_chain(channel, root, data, chunk)
    if name == "scatter_ring":
        return broadcast_scatter_ring(channel, root, data)
    raise _unknown("broadcast", name)


def reduce(
    channel: Channel,
    root: int,
    data: memoryview,
    op: Reduction,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    name, chunk = choice or select("reduce", channel.size, len(data))
    if name == "binomial":
        return reduce_binomial(channel, root, data, op, scratch)
    if name == "chain":
        return reduce_chain(channel, root, data, op, scratch, chunk)
    if name == "scatter_gather":
        return reduce_scatter_gather(channel, root, data, op, scratch, chunk)
    raise _unknown("reduce", name)


def all_reduce(
    channel: Channel,
    data: memoryview,
    op: Reduction,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Reduce ``data`` over all ranks, in place; bitwise the same result everywhere."""
    name, chunk = choice or select("all_reduce", channel.size, len(data))
    if name == "doubling":
        return all_reduce_doubling(channel, data, op, scratch)
    if name == "ring":
        return all_reduce_ring(channel, data, op, scratch, chunk)
    if name == "halving_doubling":
        return all_reduce_halving_doubling(channel, data, op, scratch)
    raise _unknown("all_reduce", name)


def all_gather(
    channel: Channel, blocks: Blocks, scratch: Scratch, choice: Choice | None = None
) -> Run:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already.

    All ranks know all lengths, which may differ.
    """
    name = (choice or select("all_gather", channel.size, sum(map(len, blocks)))).algorithm
    if name == "ring":
        return all_gather_ring(channel, blocks)
    if name == "bruck":
        return all_gather_bruck(channel, blocks, scratch)
    if name == "doubling":
        return all_gather_doubling(channel, blocks)
    raise _unknown("all_gather", name)


def gather(
    channel: Channel,
    root: int,
    data: memoryview,
    blocks: Blocks | None,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere.

    "binomial" takes blocks of one length alone, on all ranks, and is never chosen by the table.
    """
    name = (choice or select("gather", channel.size, UNEVEN)).algorithm
    if name == "linear":
        return gather_linear(channel, root, data, blocks)
    if name == "binomial":
        return gather_binomial(channel, root, data, blocks, scratch)
    raise _unknown("gather", name)


def scatter(
    channel: Channel,
    root: int,
    blocks: Blocks | None,
    out: memoryview,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere.

    "binomial" takes blocks of one length alone, on all ranks, and is never chosen by the table.
    """
    name = (choice or select("scatter", channel.size, UNEVEN)).algorithm
    if name == "linear":
        return scatter_linear(channel, root, blocks, out)
    if name == "binomial":
        return scatter_binomial(channel, root, blocks, out, scratch)
    raise _unknown("scatter", name)


def reduce_scatter(
    channel: Channel,
    blocks: Blocks,
    out: memoryview,
    op: Reduction,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block.

    All ranks know all lengths, which may differ.
    """
    name, chunk = choice or select("reduce_scatter", channel.size, sum(map(len, blocks)))
    if name == "ring":
        return reduce_scatter_ring(channel, blocks, out, op, scratch, chunk)
    if name == "pairwise":
        return reduce_scatter_pairwise(channel, blocks, out, op, scratch)
    if name == "halving":
        return reduce_scatter_halving(channel, blocks, out, op, scratch)
    raise _unknown("reduce_scatter", name)


def all_to_all(
    channel: Channel,
    inputs: Blocks,
    outputs: Blocks,
    scratch: Scratch,
    choice: Choice | None = None,
) -> Run:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank.

    ``outputs[r]`` is as long as rank r's input for this rank. Inputs and outputs are separate
    memory. "bruck" takes blocks of one length alone, on all ranks, and is never chosen by the table.
    """
    name = (choice or select("all_to_all", channel.size, UNEVEN)).algorithm
    if name == "pairwise":
        return all_to_all_pairwise(channel, inputs, outputs)
    if name == "bruck":
        return all_to_all_bruck(channel, inputs, outputs, scratch)
    raise _unknown("all_to_all", name)


def _unknown(operation: str, algorithm: str) -> ValueError:
    return ValueError(f"{operation} has no algorithm named {algorithm!r}; see select.RULES")
