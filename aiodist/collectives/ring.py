"""The pipelined ring under ring all-reduce and ring reduce-scatter.

Every block is cut into the same number of segments. A segment takes ``steps`` steps round the ring.
In the first n-1 steps the partial result of a block arrives from the left, this rank adds its part,
and sends it on to the right. At step n-2 this rank's own block arrives, then complete. In n-1
further steps (all-reduce only) results go round and land in place.

WINDOW segments take their steps together, so that one is reduced while others travel; each
receive that completes lets exactly one send go, which paces all ranks without further rules.
Partial results stay in scratch memory, warm in the cache: the input is only read.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import WINDOW, cut, segments_of, slots
from aiodist.collectives.reduction_protocol import Reduction, Scratch
from aiodist.completion import Pending


async def run_ring(
    channel: Channel,
    blocks: Sequence[memoryview],
    out: memoryview,
    reduce: Reduction,
    scratch: Scratch,
    chunk: int,
    gather: bool,
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``; with ``gather``, all results everywhere.

    With ``gather``, ``out`` is ``blocks[rank]`` and the other blocks are overwritten with their
    results. Two ranks or more.
    """
    rank, size = channel.rank, channel.size
    left, right = (rank - 1) % size, (rank + 1) % size
    count = segments_of(max(len(block) for block in blocks), chunk)
    pieces = [cut(block, reduce.itemsize, count) for block in blocks]
    results = pieces[rank] if gather else cut(out, reduce.itemsize, count)
    # What arrives at a step, in terms of blocks; the one sent first is the left neighbour's.
    steps = 2 * (size - 1) if gather else size - 1
    route = [pieces[(rank - step - 2) % size] for step in range(steps)]
    first = pieces[left]
    final = size - 2  # the step at which this rank's own block arrives
    last = steps - 1

    stages = slots(scratch, min(2 * WINDOW, count * (size - 1)), max(len(p[0]) for p in pieces))
    leaving: list[Pending[None] | None] = [None] * len(stages)  # a send that still reads a stage
    schedule = [
        (step, segment)
        for start in range(0, count, WINDOW)
        for step in range(steps)
        for segment in range(start, min(start + WINDOW, count))
    ]
    arriving: list[tuple[Pending[None], int]] = []
    staged = 0

    async def post(end: int) -> None:
        """Post receives up to ``end`` in the schedule; wait where a stage is still being sent."""
        nonlocal staged
        for step, segment in schedule[len(arriving) : end]:
            piece = route[step][segment]
            if step > final:
                # What this overwrites may formally still be on its way out; but the message that
                # will land here is made from those very bytes, so they have arrived by then.
                arriving.append((channel.recv(left, piece), -1))
                continue
            stage = staged % len(stages)
            staged += 1
            if (busy := leaving[stage]) is not None:
                leaving[stage] = None
                await busy
            arriving.append((channel.recv(left, stages[stage][: len(piece)]), stage))

    await post(WINDOW)
    sends = [channel.send(right, piece) for piece in first[:WINDOW]]
    for position, (step, segment) in enumerate(schedule):
        await post(position + WINDOW)
        received, stage = arriving[position]
        await received
        piece = route[step][segment]
        if step < final:
            partial = stages[stage][: len(piece)]
            reduce(partial, piece)
            leaving[stage] = channel.send(right, partial)
        else:
            if step == final:
                reduce.into(stages[stage][: len(piece)], piece, results[segment])
            if step < last:
                sends.append(channel.send(right, piece))
        if step == last and segment + WINDOW < count:
            sends.append(channel.send(right, first[segment + WINDOW]))

    for sent in sends:
        await sent
    for sent_stage in leaving:
        if sent_stage is not None:
            await sent_stage
