"""All-to-all after Bruck, Ho, Kipnis, Upfal and Weathersby (1997), for equal blocks.

Steps: each rank lays out its blocks by distance: place i holds the block for rank+i. In round k all
blocks whose place has bit k set go to rank + 2^k, packed into one message, and as many arrive from
rank - 2^k. After ceil(log2 n) rounds the block at place i is the one from rank-i.
Bytes per rank: about n/2 blocks a round, in ceil(log2 n) messages.
Best for small blocks on many ranks; costs copies and sends each block several times.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import slots
from aiodist.collectives.reduction_protocol import Scratch
from aiodist.copying import copy


async def all_to_all_bruck(
    channel: Channel, inputs: Sequence[memoryview], outputs: Sequence[memoryview], scratch: Scratch
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank.

    All blocks on all ranks are equally long. Separate memory. Scratch: n/2 blocks to send and as
    many to receive for each round.
    """
    rank, size = channel.rank, channel.size
    length = len(inputs[rank])
    rounds = [[i for i in range(size) if i >> k & 1] for k in range((size - 1).bit_length())]
    arriving = [scratch(len(moved) * length) for moved in rounds]
    receives = [
        channel.recv((rank - (1 << k)) % size, staging) for k, staging in enumerate(arriving)
    ]
    places = [inputs[(rank + i) % size] for i in range(size)]
    leaving = slots(scratch, len(rounds), max(map(len, rounds), default=0) * length)
    sends = []
    for k, (moved, received) in enumerate(zip(rounds, receives, strict=True)):
        packed = leaving[k][: len(moved) * length]
        for j, i in enumerate(moved):
            packed[j * length : (j + 1) * length] = places[i]
        sends.append(channel.send((rank + (1 << k)) % size, packed))
        await received
        for j, i in enumerate(moved):
            places[i] = arriving[k][j * length : (j + 1) * length]
    for i, block in enumerate(places):
        copy(outputs[(rank - i) % size], block)
    for sent in sends:
        await sent
