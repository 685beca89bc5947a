"""Dissemination barrier (Hensgen, Finkel and Manber 1988).

Steps: in round k = 0, 1, ... each rank signals rank + 2^k and waits for the signal of
rank - 2^k (modulo the number of ranks). After ceil(log2 n) rounds each rank has heard, through
others, of all ranks.
Bytes per rank: none; ceil(log2 n) empty messages.
"""

from __future__ import annotations

from aiodist.collectives.channel import Channel


async def barrier_dissemination(channel: Channel) -> None:
    """Return when all ranks have entered."""
    rank, size = channel.rank, channel.size
    nothing = memoryview(bytearray())
    distances = [1 << k for k in range((size - 1).bit_length())]
    heard = [channel.recv((rank - distance) % size, nothing) for distance in distances]
    told = []
    for distance, signal in zip(distances, heard, strict=True):
        told.append(channel.send((rank + distance) % size, nothing))
        await signal
    for signal in told:
        await signal
