"""A collective in the areas: every rank publishes its bytes, and reads what it needs of the others'.

There are S = N / half steps, where N is the longest contribution. In step i each rank copies bytes
``i * half`` to ``(i + 1) * half`` of its operand into one half of its area. Then all meet. Then
each copies or reduces what it needs out of the others' halves, while it fills its own other half.

Invariant: when all meet again, no rank reads the first half any more, so it may be overwritten. A
rank writes its operand to the device memory once, and reads what it needs once. Every rank that
needs an element of a reduction computes it from the same operands in the same order, so the bits
are equal.

This is the scheme of MPI libraries for ranks of one node, by copies into and out of a shared
segment (Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory
collectives", 2008). A barrier of messages takes the place of flags, which a device cannot set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aiodist.backends.devices.areas import Areas
from aiodist.backends.polling import until
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.partition import segments_of
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.group_engine import GroupEngine

if TYPE_CHECKING:
    from torch import Tensor

    from aiodist.tensors.pieces import Pieces
    from aiodist.tensors.torch_tensor_lists import DeviceReduction


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What this rank gives and takes."""

    given: Pieces
    lengths: Sequence[int]
    """Bytes of ``given`` for each rank; or one number, of what is for all of them."""
    into: Mapping[int, Pieces]
    """Where what each rank has for this one goes; with ``reduce`` the only entry is the result's."""
    reduce: DeviceReduction | None = None

    def needs_staging(self, rank: int) -> bool:
        """Return whether ``given`` must be copied first: a step overwrites what a later step reads.

        ``rank``: this rank's.
        """
        position, _ = _range(self.lengths, rank)
        return any(pieces.overwrites(self.given, position) for pieces in self.into.values())


async def exchange(
    group: GroupEngine,
    context: CollectiveContext,
    areas: Areas,
    plan: DevicePlan,
    lengths: Sequence[Sequence[int]],
) -> None:
    """Carry out ``plan``; ``lengths`` are those of all ranks, by rank.

    Raises CollectiveMismatchError where a rank has more or fewer bytes than are expected of it.
    """
    half = areas.half
    ranges = [_range(row, context.rank) for row in lengths]
    _check(context, plan, ranges)
    steps = max(segments_of(sum(row), half) for row in lengths)
    own = areas.of[context.rank]

    def put(step: int) -> None:
        low, high = step * half, min((step + 1) * half, plan.given.nbytes)
        if low >= high:
            return
        place = _half(own, half, step)
        for start, part in plan.given.parts(low, high):
            place[start : start + part.numel()].copy_(part, non_blocking=True)
        if plan.reduce is not None:
            plan.reduce.prepare(place[: high - low])

    def take(step: int) -> None:
        sources = [_half(area, half, step) for area in areas.of]
        first = step * half
        for rank, pieces in plan.into.items():
            start, stop = ranges[rank]
            low, high = max(first, start), min(first + half, stop)
            if low >= high:
                continue
            for offset, part in pieces.parts(low - start, high - start):
                begin = low - first + offset
                found = [source[begin : begin + part.numel()] for source in sources]
                if plan.reduce is not None:
                    plan.reduce(part, found)
                else:
                    part.copy_(found[rank], non_blocking=True)

    def both(step: int) -> None:
        take(step)
        put(step + 1)

    run = areas.memory.run
    if steps:
        await until(group, run(partial(put, 0)))
    for step in range(steps):
        await barrier_dissemination(context)
        await until(group, run(partial(both, step)))


def _half(area: Tensor, half: int, step: int) -> Tensor:
    start = step % 2 * half
    return area[start : start + half]


def _range(lengths: Sequence[int], rank: int) -> tuple[int, int]:
    """Return start and stop of the bytes that a rank with these ``lengths`` has for ``rank``."""
    if len(lengths) == 1:
        return 0, lengths[0]
    start = sum(lengths[:rank])
    return start, start + lengths[rank]


def _check(context: CollectiveContext, plan: DevicePlan, ranges: Sequence[tuple[int, int]]) -> None:
    for rank, pieces in plan.into.items():
        sources = range(context.size) if plan.reduce is not None else (rank,)
        for source in sources:
            start, stop = ranges[source]
            context.check_length(source, stop - start, pieces.nbytes)
