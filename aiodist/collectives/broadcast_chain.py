"""Broadcast along a chain of ranks in chunks (a pipeline; "chain" in Open MPI's tuned module).

Steps: root, root+1, ..., root+n-1 form a chain. Each rank receives chunk after chunk from the
one before it and passes each on as soon as it is there, while the next is travelling.
Bytes per rank: N, in ceil(N / chunk) messages; the end of the chain sends nothing.
Time is that of N bytes and n-2 chunks more: best for large data while the chain is short against
the number of chunks.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import CHUNK, WINDOW, cut, segments_of
from aiodist.completion import Pending


async def broadcast_chain(
    channel: Channel, root: int, data: memoryview, chunk: int = CHUNK
) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    place = (rank - root) % size
    before, after = (rank - 1) % size, (rank + 1) % size
    pieces = cut(data, 1, segments_of(len(data), chunk))
    receives = []
    if place:
        receives = [channel.recv(before, piece) for piece in pieces[:WINDOW]]
    sends: list[Pending[None]] = []
    for i, piece in enumerate(pieces):
        if place:
            await receives[i]
            if i + WINDOW < len(pieces):
                receives.append(channel.recv(before, pieces[i + WINDOW]))
        if place < size - 1:
            if i >= WINDOW:  # the root would otherwise queue all of its data at once
                await sends[i - WINDOW]
            sends.append(channel.send(after, piece))
    for sent in sends[-WINDOW:]:
        await sent
