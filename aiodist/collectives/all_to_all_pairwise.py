"""All-to-all by pairwise exchange.

Steps: in round s = 1 .. n-1 a rank sends rank+s its block and receives from rank-s, in place. A few
rounds overlap; more would only crowd the receivers.
Bytes per rank: all its blocks but its own, in n-1 messages: the minimum.
Best for large or uneven blocks, and for few ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.partition import WINDOW
from aiodist.copying import copy


async def all_to_all_pairwise(
    channel: Channel, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank.

    Lengths may differ; ``outputs[r]`` is as long as rank r's input for this rank. Separate memory.
    """
    rank, size = channel.rank, channel.size
    receives = [
        channel.recv((rank - step) % size, outputs[(rank - step) % size]) for step in range(1, size)
    ]
    sends = []
    for step in range(1, size):
        if step > WINDOW:
            await receives[step - 1 - WINDOW]
        sends.append(channel.send((rank + step) % size, inputs[(rank + step) % size]))
    copy(outputs[rank], inputs[rank])
    for pending in (*receives, *sends):
        await pending
